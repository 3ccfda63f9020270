"""The Kafka clients: the only package that imports confluent_kafka. It implements `statehold.ports` on librdkafka."""
