"""Stores the chunks of full snapshots outside Kafka: in a shared directory or an object store."""
