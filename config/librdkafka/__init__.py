"""Which librdkafka keys a user may set and which statehold sets itself."""
