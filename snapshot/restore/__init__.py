"""Restore a state: find a full snapshot, load it, apply the deltas after it."""
