"""Test a handler without Kafka: `from statehold.testing import Driver`."""

from statehold.testing.driver import Driver, OutputRecord
from statehold.testing.interleavings import Arrival, interleavings
from statehold.testing.memory.calls import OpenCall
from statehold.testing.replay import BatchesMatter
from statehold.testing.stepped import EffectCall
from statehold.testing.upcasters import check_upcasters

__all__ = [
    "Arrival",
    "BatchesMatter",
    "Driver",
    "EffectCall",
    "OpenCall",
    "OutputRecord",
    "check_upcasters",
    "interleavings",
]
