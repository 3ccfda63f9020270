"""Shadows a running service: new code handles the same input, and its results are compared. Writes nothing."""
