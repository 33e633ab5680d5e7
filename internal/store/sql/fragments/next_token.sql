-- A new token for the row.
GREATEST({r}token + 256, {>now_micros})
