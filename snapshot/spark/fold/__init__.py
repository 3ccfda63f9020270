"""Folds deltas into the newest value of each key, and verifies the result."""
