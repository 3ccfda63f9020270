"""Error tables, retries and probes that all Kafka clients share."""
