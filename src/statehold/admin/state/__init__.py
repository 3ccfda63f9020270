"""Change the stored state of a stopped service: migrate, repartition, move to another input."""
