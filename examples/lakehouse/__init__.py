"""Spark jobs that keep the state of a service in a lakehouse, in tables of Delta or of Iceberg."""
