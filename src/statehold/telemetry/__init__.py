"""Metrics, log events and the history of events."""
