"""Error tables, retries and signs of trouble that all clients share."""
