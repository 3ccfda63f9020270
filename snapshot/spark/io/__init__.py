"""Reads and writes the topics with Spark."""
