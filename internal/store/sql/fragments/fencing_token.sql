-- The fencing token of the row l, without the shared_bit that the row of a shared hold has.
(l.token & ({>shared_bit} - 1))
