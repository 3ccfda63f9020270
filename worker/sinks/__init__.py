"""Rows for a database in step with Kafka transactions."""
