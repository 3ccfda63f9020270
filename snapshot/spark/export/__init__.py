"""Exports the newest or an earlier state with Spark."""
