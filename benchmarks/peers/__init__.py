"""Joins and windows by statehold, Kafka Streams and quixstreams: the same input topics, the same outputs."""
