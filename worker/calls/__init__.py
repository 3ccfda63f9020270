"""Durable calls of a live partition: make them, and give their answers a place in the order of its records."""
