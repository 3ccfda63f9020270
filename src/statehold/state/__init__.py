"""The state of one partition, in memory."""
