"""What runs on Spark: folding, export. The only package that imports pyspark; nothing of a worker imports it."""
