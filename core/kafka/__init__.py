"""The only package that knows confluent_kafka: ports of `holdfast.ports` on librdkafka, errors turned into ours."""
