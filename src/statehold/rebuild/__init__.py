"""Rebuilds the state of a service: runs new code over the kept input without outputs, and replaces the state."""
