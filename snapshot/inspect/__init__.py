"""Look at snapshots without the code of the service."""
