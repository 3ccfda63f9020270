"""What tests/side_by_side.py names is there: a file that was renamed would begin last, without a word."""

from __future__ import annotations

from pathlib import Path

from tests.side_by_side import LONGEST, TOGETHER, unit


def test_what_it_names_is_there(root: Path) -> None:
    assert [each for each in (*TOGETHER, *LONGEST) if not (root / each).exists()] == []


def test_a_file_stays_together_and_so_does_a_folder_that_shares() -> None:
    assert unit("tests/unit/test_work.py::TestIt::test_it[a::b]") == "tests/unit/test_work.py"
    assert unit("tests/spark/test_lock.py::test_it") == "tests/spark/"
