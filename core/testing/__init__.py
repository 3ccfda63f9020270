"""Test a handler without Kafka: `from holdfast.testing import Driver`."""

from holdfast.testing.driver import Driver, OutputRecord
from holdfast.testing.replay import BatchesMatter
from holdfast.testing.stepped import EffectCall

__all__ = ["BatchesMatter", "Driver", "EffectCall", "OutputRecord"]
