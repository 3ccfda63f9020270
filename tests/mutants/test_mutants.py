"""The planted defects fit the sources, each rule of docs/design.md has one, and what caught them exists."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.mutants import __main__ as hunting
from tests.mutants.__main__ import CAUGHT, HANG, ROOT, mutants

DESIGN = ROOT / "docs" / "design.md"
#: folders whose code names rules
CODE = ("balancer", "config", "ops", "snapshot", "src/statehold", "worker")
#: the fold runs in Spark, whose tests need Java
SPARK = {"C1", "C2"}


def listed_rules() -> list[str]:
    """Return the ids in the table of docs/design.md."""
    return re.findall(r"^\| ([A-Z]\d) \|", DESIGN.read_text(encoding="utf-8"), re.MULTILINE)


def rules() -> set[str]:
    return set(listed_rules())


def test_each_rule_has_an_id_of_its_own() -> None:
    assert [rule for rule, count in Counter(listed_rules()).items() if count > 1] == []


def test_each_mutant_changes_one_place_of_the_sources() -> None:
    names = Counter(each.name for each in mutants())
    assert [name for name, count in names.items() if count > 1] == []
    assert len(names) >= 120
    for each in mutants():
        assert (ROOT / each.file).read_text(encoding="utf-8").count(each.old) == 1, each.name
        assert each.old != each.new, each.name


def test_each_rule_has_a_mutant_and_each_mutant_a_rule() -> None:
    assert {each.rule for each in mutants()} == rules() - SPARK


def test_the_code_names_only_rules_that_the_design_has() -> None:
    named = set[str]()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            for found in re.findall(r"\brules? ((?:[A-Z]\d(?:, | and |-)?)+)", path.read_text(encoding="utf-8")):
                named |= set(re.findall(r"[A-Z]\d", found))
    assert len(named) > 20
    assert named <= rules()


def test_what_caught_a_mutant_exists() -> None:
    caught = json.loads(CAUGHT.read_text(encoding="utf-8"))
    assert set(caught) <= {each.name for each in mutants()}
    assert len(caught) >= 120
    for name, found in caught.items():
        if "::" in found["by"]:
            file, _, test = found["by"].partition("::")
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name
        else:
            assert found["by"] == HANG or found["by"].startswith("simulation"), name


@pytest.fixture
def _not_ended() -> Iterator[None]:
    yield
    hunting.ended.clear()


@pytest.mark.usefixtures("_not_ended")
def test_a_signal_ends_the_runs_in_progress_and_starts_no_more(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hunting.run_in, str(tmp_path), "-c", "import time; time.sleep(600)")
        while not hunting.RUNNING and not running.done():
            time.sleep(0.01)
        with pytest.raises(SystemExit, match="143"):
            hunting.end(signal.SIGTERM, None)
        with pytest.raises(SystemExit):
            running.result(60)
        assert not hunting.RUNNING
        with pytest.raises(SystemExit):
            pool.submit(hunting.run_in, str(tmp_path), "-c", "import time; time.sleep(600)").result(60)
