"""Topics that a partition follows beside its input."""
