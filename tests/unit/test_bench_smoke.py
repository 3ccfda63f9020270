"""`script/bench smoke`: which counts are the works', and which change fails."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as bench
from benchmarks import load
from benchmarks.report import rate_text, spread_text
from benchmarks.smoke import LIMIT, Measured, counted, report
from benchmarks.smoke_work import RECORDS, WORKS, prepared

from statehold import Handler


def measured(**costs: float) -> Measured:
    return Measured("0" * 40, "here", "instructions per record", costs)


@pytest.mark.parametrize("kind", WORKS.values(), ids=WORKS)
def test_each_work_runs(kind: type[Handler[Any]]) -> None:
    work: Callable[[], None] = prepared(kind)
    work()


def test_the_works_are_the_largest_counts_in_their_order(tmp_path: Path) -> None:
    """Imports run text, too, and callgrind leaves a file without a number at the end."""
    totals = [900, *(20_000 * RECORDS + number for number in range(len(WORKS))), 1_200]
    for number, total in enumerate(totals, 1):
        (tmp_path / f"count.{number}").write_text(
            f"events: Ir\nsummary: {total}\n\ntotals: {total}\n", encoding="utf-8"
        )
    (tmp_path / "count").write_text("totals: 0\n", encoding="utf-8")
    assert list(counted(tmp_path)) == list(WORKS)
    assert counted(tmp_path)["totals"] == 20_000


def test_a_python_without_that_function_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="smoke --seconds"):
        counted(tmp_path)


@pytest.mark.parametrize(("now", "code"), [(1000.0 * LIMIT, 0), (1000.0 * LIMIT + 1, 1), (500.0, 0)])
def test_a_work_that_costs_more_fails(now: float, code: int) -> None:
    assert report(measured(totals=1000.0), measured(totals=now, windows=1.0)) == code


def test_a_warm_rate_leaves_out_the_first_five_seconds() -> None:
    slow = list(range(0, 5_000, 100))
    fast = list(range(5_000, 8_001, 10))
    assert load.Outcome(stamps=slow + fast).warm == 100
    assert load.Outcome(stamps=slow).warm == 0


def test_outputs_of_one_transaction_have_no_rate() -> None:
    short = load.Outcome(stamps=[7] * 100)
    assert short.rate == 0
    assert rate_text([short.rate]) == spread_text([short.rate]) == "-"
    assert (rate_text([0, 10, 30]), spread_text([0, 10, 30])) == ("20", "10-30")
    assert load.Outcome(stamps=list(range(0, 100, 10))).rate == 100


def test_without_a_name_it_lists_the_benchmarks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """argparse formats each help text, so that a percent sign in one ended the list."""
    monkeypatch.setattr(sys, "argv", ["script/bench"])
    assert bench.main() == 2
    listed = capsys.readouterr().out
    assert [name for name in bench.BENCHMARKS if f"\n    {name} " not in listed] == []
