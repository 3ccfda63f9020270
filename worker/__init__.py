"""One partition: its thread, its producer, its state. Nothing here uses the consumer."""
