"""Writes and restores states: commit records, deltas and full snapshots on a partition's topics."""
