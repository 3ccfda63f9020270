"""Read and write the topics with Spark."""
