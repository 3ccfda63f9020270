"""Basics of settings: one option, units, secrets, errors."""
