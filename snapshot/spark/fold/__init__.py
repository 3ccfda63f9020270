"""Fold deltas into the newest value of each key, and prove the result."""
