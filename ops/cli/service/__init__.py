"""Commands that start, stop and control a service."""
