"""Durations and sizes: what is read, what is refused, and that writing and reading agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehold.config.common.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0.1", 0.1),
        ("100ms", 0.1),
        ("0.1s", 0.1),
        ("5s", 5.0),
        ("10m", 600.0),
        ("1h", 3600.0),
        ("1d", 86_400.0),
        (" 2 S ", 2.0),
        (".5s", 0.5),
        ("0", 0.0),
    ],
)
def test_a_duration_may_carry_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "ms", "-1s", "1 parsec", "1s2", "1e3", "nan", "inf", "\N{ARABIC-INDIC DIGIT ONE}s", "1,5s"]
)
def test_a_malformed_duration_is_rejected_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(ValueError, match="'100ms'"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("256MB", 256_000_000),
        ("64KiB", 65_536),
        ("1.5kb", 1500),
        ("2gib", 2 * 1024**3),
        ("7 B", 7),
    ],
)
def test_a_size_may_carry_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1XB", "0.5B", "1.0001KB"])
def test_a_fractional_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="'256MB'"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**10))
def test_every_duration_in_milliseconds_survives_writing_and_reading(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=10**15))
def test_every_size_survives_writing_and_reading(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.text(max_size=20))
def test_any_text_is_either_read_or_rejected_as_a_value(text: str) -> None:
    for read in (parse_duration, parse_size):
        try:
            outcome = f"a number of {read(text)}"
        except ValueError as rejected:
            outcome = str(rejected)
        assert outcome.startswith("a number of")
