"""Full snapshots of a live partition: when, how, and what may then be deleted."""
