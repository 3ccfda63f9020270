"""The formats of records outside changelog and snapshots: commands, dead letters, retries."""
