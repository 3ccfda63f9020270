"""Rehearses a release: runs new code from a stored state over the records after it, and compares. Writes nothing."""
