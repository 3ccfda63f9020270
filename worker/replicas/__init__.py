"""Threads that follow a topic for the whole process: standby replicas and reference data."""
