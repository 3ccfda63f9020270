"""Clients of command-line tools: locks, and producers of commands and input records."""
