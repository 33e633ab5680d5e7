-- Bit 62, which is set in the token of a shared hold's row, in addition to the token of the name.
-- Otherwise the row's new entry in the guard index could be right before the entry of a lock that a
-- guard has locked, together with the gap before it (MariaDB under REPEATABLE READ).
4611686018427387904
