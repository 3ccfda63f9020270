"""Bring a partition back: fence, restore, replay the gap."""
