"""Wires a service together and monitors it while it runs."""
