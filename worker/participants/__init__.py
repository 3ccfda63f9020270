"""The features that take part in a transaction, one file each."""
