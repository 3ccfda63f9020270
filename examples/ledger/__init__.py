"""A ledger over bank transactions: a small service, tested against a bank's own balances."""
