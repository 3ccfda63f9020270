"""Keeps samples of this instance's partitions for the console's charts: the last five minutes to the last day."""

from __future__ import annotations

import time
from array import array
from collections import deque
from itertools import pairwise
from typing import Any, Final

#: seconds between two samples
SAMPLE_SECONDS: Final = 2.0
#: of each span, so that a chart has the same number of points whatever it spans
_KEPT: Final = 150
#: seconds that a chart can span, and how many samples become one point
SPANS: Final = {300: 1, 3_600: 12, 21_600: 72, 86_400: 288}
_NOTHING: Final = float("nan")

#: per partition: lag, committed records so far, mailbox
Row = dict[int, tuple[float, float, float]]


class History:
    """Samples by span. A point of a long span has the highest lag and mailbox of its samples, so that no peak is lost.

    The caller serialises threads.
    """

    def __init__(self) -> None:
        self._spans = {seconds: _Span(samples) for seconds, samples in SPANS.items()}

    def note(self, status: dict[str, Any]) -> None:
        """Add a sample from `Service.status`."""
        now = time.time()
        row = {each["partition"]: _figures(each) for each in status["partitions"]}
        for span in self._spans.values():
            span.note(now, row)

    def after(self, number: int, span: int = 300) -> list[dict[str, Any]]:
        """Return the points of a span, one of `SPANS`, with a greater number, oldest first."""
        return self._spans[span].after(number)


class _Span:
    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._points: deque[tuple[int, float, array[float]]] = deque(maxlen=_KEPT)
        self._number = 0
        self._pending: list[Row] = []

    def note(self, now: float, row: Row) -> None:
        self._pending.append(row)
        if len(self._pending) < self._samples:
            return
        self._number += 1
        flat: array[float] = array("d")
        for partition, figures in _merged(self._pending).items():
            flat.extend((partition, *figures))
        self._points.append((self._number, now, flat))
        self._pending.clear()

    def after(self, number: int) -> list[dict[str, Any]]:
        return [
            {"number": at, "time": when, "partitions": _shown(flat)} for at, when, flat in self._points if at > number
        ]


def _figures(partition: dict[str, Any]) -> tuple[float, float, float]:
    live = partition["live"]
    return (_number(partition["lag"]), _number(live["records"] if live else None), float(partition["mailbox"]))


def _number(value: int | None) -> float:
    return _NOTHING if value is None else float(value)


def _merged(rows: list[Row]) -> Row:
    """Return the highest lag and mailbox of each partition, and its newest number of records."""
    merged = dict(rows[-1])
    for row in rows[:-1]:
        for partition, (lag, _, mailbox) in row.items():
            if partition in merged:
                highest, records, fullest = merged[partition]
                merged[partition] = (_higher(lag, highest), records, max(mailbox, fullest))
    return merged


def _higher(one: float, other: float) -> float:
    return other if one != one else max(one, other)  # noqa: PLR0124  NaN is not equal to itself


def _shown(flat: array[float]) -> dict[int, list[int | None]]:
    starts = range(0, len(flat) + 1, 4)
    return {int(flat[a]): [None if f != f else int(f) for f in flat[a + 1 : b]] for a, b in pairwise(starts)}  # noqa: PLR0124
