"""The manager thread: owns the consumer, hands records to the partitions' threads. Nothing here knows the worker package."""
