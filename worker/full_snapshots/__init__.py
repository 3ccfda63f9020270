"""Full snapshots of a live partition: schedule, write, verify, truncate."""
