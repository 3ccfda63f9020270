"""A simulated Kafka: state machines in virtual time, without threads and without waiting.

`SimulatedKafka` is the cluster; `SimulatedKafka.process` makes the clients of one operating-system process, which
implement the protocols of `statehold.ports`. tests/contracts compares it with real brokers.
"""
