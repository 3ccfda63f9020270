"""Inspects snapshots without the code of the service."""
