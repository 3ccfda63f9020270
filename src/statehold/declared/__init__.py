"""Reads what a handler class declares: tables, outputs, sinks, types of messages and failure policies."""
