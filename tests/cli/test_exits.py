"""Exit codes: one place declares them, the page has a row for each, an error has the code that fits it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statehold.common.exit_codes import ANSWERS, MEANINGS, Answer, Exit, exit_of
from statehold.config.common.errors import Problem, SettingsError
from statehold.errors import (
    AccessRefused,
    HandlerFailed,
    OutageTooLong,
    StartError,
    StateholdError,
    StuckCall,
    TopicMissing,
    UsageError,
)


def test_the_page_has_a_row_for_each_code(root: Path) -> None:
    page = (root / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE)

    wanted = [(str(code.value), f"{text} | {'yes' if again else 'no'}") for code, (text, again) in MEANINGS.items()]
    wanted += [(str(code.value), text) for code, text in ANSWERS.items()]
    assert rows == wanted


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)
    assert set(ANSWERS) == set(Answer)
    assert [int(each) for each in (Exit.STOPPED, Exit.ERROR, Exit.USAGE)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, Exit.STOPPED),
        (HandlerFailed("odd lot"), Exit.PARTITION_FAILED),
        (UsageError("no module"), Exit.CONFIGURATION),
        (SettingsError(Problem(key="commit.x", cause="unknown")), Exit.CONFIGURATION),
        (TopicMissing("trades"), Exit.CONFIGURATION),
        (AccessRefused("SASL"), Exit.CONFIGURATION),
        (StartError("the brokers do not answer"), Exit.ERROR),
        (StuckCall("commit_transaction"), Exit.STUCK),
        (OutageTooLong("an hour"), Exit.OUTAGE),
        (StateholdError("?"), Exit.ERROR),
        (ZeroDivisionError(), Exit.ERROR),
    ],
)
def test_an_error_has_the_code_that_fits_it(error: BaseException | None, code: Exit) -> None:
    assert exit_of(error) is code
