"""A backup as files: raw records as JSON lines, a checksummed manifest, and a reader over them. No Kafka in here."""
