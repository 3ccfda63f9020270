"""Wires a service together and watches it while it runs."""
