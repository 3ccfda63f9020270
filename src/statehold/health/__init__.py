"""Health of the process: stuck calls, unreachable brokers, memory."""
