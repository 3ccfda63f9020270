"""Consumers, producers and readers of a running service."""
