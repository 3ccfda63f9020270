"""An output of a wrong type names its topic, the value and the declared type; what its serde would take is accepted."""

from __future__ import annotations

from typing import Any

import pytest

from statehold import Output
from statehold.bound.output import PartitionOutput
from statehold.errors import UsageError
from statehold.messages.sent import Sent


class Index:
    """An integer of another library, such as numpy."""

    def __index__(self) -> int:
        return 7


def bound(kind: Any) -> tuple[PartitionOutput[Any], list[Sent]]:
    sent: list[Sent] = []
    return PartitionOutput(Output("totals", value=kind)).bind(sent), sent


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (int, "x", "'x' is of type str, the output is declared with value=int"),
        (int, 1.5, "1.5 is of type float"),
        (int | None, "x", r"'x' is of type str, the output is declared with value=NoneType \| int"),
        (str, 7, "7 is of type int, the output is declared with value=str"),
        (bytes, "x", "'x' is of type str, the output is declared with value=bytes"),
        (bytes, None, r"None is of type NoneType, .* needs the type bytes \| None"),
    ],
)
def test_a_value_of_another_type_is_rejected_by_its_output(kind: Any, value: Any, named: str) -> None:
    output, sent = bound(kind)
    with pytest.raises(UsageError, match=rf"Output\('totals'\): {named}"):
        output.send(value)
    with pytest.raises(UsageError, match=rf"Output\('totals'\): {named}"):
        output.send_all([value])
    assert sent == []


@pytest.mark.parametrize(
    ("kind", "value", "written"), [(int, True, b"1"), (int | None, None, None), (str, "x", b"x"), (bytes, b"x", b"x")]
)
def test_a_value_of_the_type_is_sent(kind: Any, value: Any, written: bytes | None) -> None:
    output, sent = bound(kind)
    output.send(value)
    assert sent[0][1] == written


def test_an_integer_of_another_library_is_sent() -> None:
    output, sent = bound(int)
    output.send(Index())
    assert sent[0][1] == b"7"
