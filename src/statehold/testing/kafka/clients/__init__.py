"""Clients of the simulated Kafka: they implement the protocols of `statehold.ports`, each for one process."""
