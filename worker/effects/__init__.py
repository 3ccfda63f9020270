"""Side effects: record them in the transaction, run them after its commit."""
