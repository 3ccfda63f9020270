"""The only package that knows confluent_kafka: ports of `statehold.ports` on librdkafka, errors turned into ours."""
