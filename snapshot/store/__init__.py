"""Where the chunks of fulls are kept, if not in Kafka: a directory that all machines see, or an object store."""
