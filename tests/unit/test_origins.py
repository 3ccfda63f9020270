"""Which transaction wrote an output, as its headers say; other programs write headers with any value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.api.record import MemoryMessage
from statehold.bound.output import ORIGIN, ORIGIN_HEADER, Origin, origin_of, with_origin
from statehold.snapshot.inspect import typed
from statehold.snapshot.inspect.lines import Lines

MINE = (ORIGIN_HEADER, ORIGIN.pack(3, 70, 2))


@pytest.mark.parametrize("headers", [None, [], [("a", b"1")], [("SH", MINE[1])]])
def test_a_record_without_the_header_names_no_origin(headers: list[tuple[str, Any]] | None) -> None:
    assert origin_of(headers) is None


@pytest.mark.parametrize("data", [None, b"", b"x", MINE[1][:-1], MINE[1] + b"x", "text"])
def test_a_header_of_another_program_names_no_origin_and_stays(data: object) -> None:
    other = (ORIGIN_HEADER, data)
    assert origin_of([other]) is None
    assert origin_of([MINE, other]) == Origin(3, 70, 2, (other,))


def test_the_last_header_counts_because_a_dead_letter_repeats_those_of_its_record() -> None:
    former = (ORIGIN_HEADER, ORIGIN.pack(5, 999, 0))
    assert origin_of([former, ("a", b"1"), MINE, ("b", b"2")]) == Origin(3, 70, 2, (former, ("a", b"1"), ("b", b"2")))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31),
    st.none() | st.lists(st.tuples(st.text(), st.binary())),
)
def test_what_a_service_writes_is_what_is_read(
    partition: int, n: int, ordinal: int, headers: list[tuple[str, bytes]] | None
) -> None:
    ((*_, written),) = with_origin([("t", b"v", "k", -1, None, None, 0, headers)], partition, n, ordinal)
    assert origin_of(written) == Origin(partition, n, ordinal, tuple(headers or ()))


def test_a_line_of_json_has_the_origin_and_keeps_the_headers_that_look_like_one() -> None:
    headers = [(ORIGIN_HEADER, ORIGIN.pack(5, 999, 0)), MINE, ("a", b"1"), (ORIGIN_HEADER, b"x")]
    line = Lines(False, typed.Typed(), {}).line(MemoryMessage("t", 0, 0, b"1", None, headers))
    assert line["origin"] == {"partition": 3, "n": 70, "ordinal": 2}
    assert [name for name, _ in line["headers"]] == [ORIGIN_HEADER, "a", ORIGIN_HEADER]
