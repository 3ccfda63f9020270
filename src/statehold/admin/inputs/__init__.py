"""Change the inputs of a stopped service that has state: add, remove, rename, reorder."""
