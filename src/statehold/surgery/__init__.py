"""Changing a stopped service's state by other means than its input: migrate and repartition (docs/surgery.md)."""
