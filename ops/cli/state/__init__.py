"""Commands for snapshots and stored state."""
