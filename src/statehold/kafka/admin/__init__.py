"""Requests to the brokers through an AdminClient."""
