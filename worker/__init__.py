"""One partition: its thread, its producer, its state. Nothing here knows the consumer."""
