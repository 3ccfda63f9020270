"""Reach running services, here and on other machines."""
