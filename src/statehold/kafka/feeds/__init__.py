"""Follows topics in addition to the input: the control topic and retry topics."""
