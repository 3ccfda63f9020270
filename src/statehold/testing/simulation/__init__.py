"""Runs the processes of a service as tasks of one seeded loop, over a simulated Kafka, in virtual time."""
