"""Shared by all parts of a worker: phases, signals, mailbox, context."""
