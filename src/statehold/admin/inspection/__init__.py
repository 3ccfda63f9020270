"""Reads the topics of a service without changing them: states, full snapshots, replays of real input."""
