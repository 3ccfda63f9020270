"""Reaches running services, on this machine and on others."""
