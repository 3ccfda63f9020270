"""A clearing service: trades in, fills and margin calls out, positions and accounts kept in memory."""
