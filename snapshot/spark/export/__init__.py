"""Export a state with Spark, also of an earlier point in time."""
