"""Marks, deltas and fulls: how state is written and restored."""
