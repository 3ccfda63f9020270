"""Test a handler without Kafka: `from statehold.testing import Driver`."""

from statehold.testing.driver import Driver, OutputRecord
from statehold.testing.replay import BatchesMatter
from statehold.testing.stepped import EffectCall

__all__ = ["BatchesMatter", "Driver", "EffectCall", "OutputRecord"]
