"""Services to read, to run and to copy: `clearing` (with the demo) and `ledger`."""
