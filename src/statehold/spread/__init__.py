"""Rehearsals and rebuilds on Spark: each partition is the task of an executor. Needs pyspark."""
