"""Requests to the brokers by an AdminClient."""
