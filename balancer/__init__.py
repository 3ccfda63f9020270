"""The manager thread: owns the consumer, hands records over. Nothing here knows the worker package."""
