"""Commands that start, stop and steer a service."""
