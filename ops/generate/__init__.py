"""Generates files: a new service, systemd units, AsyncAPI."""
