"""An error of an executor is raised again on the driver, of its class where one text makes it, and with its text."""

from __future__ import annotations

import pytest

from statehold import errors
from statehold.snapshot.spark.io.source import JobFailed
from statehold.spread.partitions import FailedPartition, raised


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_the_text_of_every_error_arrives(kind: type[Exception]) -> None:
    found = raised(FailedPartition(kind.__name__, "input[3]@7: what it says"), "partition 3: rebuild")
    assert "input[3]@7: what it says" in str(found)
    assert type(found) is kind or isinstance(found, JobFailed)


def test_errors_with_one_text_keep_their_class() -> None:
    assert isinstance(raised(FailedPartition("StateRefused", "x"), "p"), errors.StateRefused)
    assert isinstance(raised(FailedPartition("KeyError", "x"), "p"), JobFailed)
