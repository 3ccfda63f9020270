"""The manager thread: owns the consumer and hands records to the workers. Never imports the worker package."""
