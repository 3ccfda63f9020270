"""The version of librdkafka in use."""

from __future__ import annotations

from confluent_kafka import libversion


def version() -> tuple[int, int, int]:
    """Return major, minor and revision of the loaded library."""
    number = libversion()[1]
    return number >> 24, number >> 16 & 0xFF, number >> 8 & 0xFF
