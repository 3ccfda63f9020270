"""Records that fail: retries, dead letters, retry topics."""
