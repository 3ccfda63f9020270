"""The librdkafka keys that a user may set, and those that statehold sets."""
