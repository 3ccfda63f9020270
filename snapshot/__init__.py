"""Marks, deltas and fulls: what a partition leaves on its topics, and how a state comes back from it."""
