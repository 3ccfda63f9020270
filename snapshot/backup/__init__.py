"""The files of a backup: records as JSON lines, a manifest with checksums, and a reader. Does not use Kafka."""
