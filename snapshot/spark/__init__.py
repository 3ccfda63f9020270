"""Compaction, export and migration on Spark. Only this package imports pyspark, and no worker module imports it."""
