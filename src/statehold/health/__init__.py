"""Is the process well: calls that hang, brokers out of reach, memory."""
