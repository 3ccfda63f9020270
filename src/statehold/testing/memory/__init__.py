"""A Kafka cluster and a database in memory and in one thread, for the driver."""
