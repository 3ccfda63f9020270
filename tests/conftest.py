"""Shared by all tests: a complete editable install, tiers by markers, time per section, figures with seed."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import platform
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from confluent_kafka import libversion
from tests import side_by_side
from tests.support.figures import SEED, Figure

from statehold.dev.jars import DEFAULT_VERSION

pytest_plugins = ["tests.support.leftovers"]
ROOT = Path(__file__).resolve().parent.parent
_figures: list[dict[str, object]] = []

# A busy machine makes no property false.
hypothesis.settings.register_profile(
    "statehold", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("statehold")
# A planted defect is caught by the first example; the shortest one is of no interest (tests/mutants).
hypothesis.settings.register_profile(
    "mutants",
    hypothesis.settings.get_profile("statehold"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)


@pytest.fixture(scope="module", autouse=True)
def _free_clients() -> Iterator[None]:
    """Free the clients that a module's tests have left in cycles: each keeps threads, and asks its broker for more."""
    yield
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --run-long, which script/test --long gives."""
    parser.addoption("--run-long", action="store_true", help="run the tests marked long, too")


def pytest_configure() -> None:
    """Let SIGINT reach what tests start.

    A shell has its background jobs ignore SIGINT, and what is ignored stays so in their children.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Name what a figure depends on."""
    return f"statehold: seed {SEED} (STATEHOLD_SEED repeats it), confluent-kafka {version('confluent-kafka')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this run cannot do."""
    no_spark = importlib.util.find_spec("pyspark") is None
    reasons = {
        "root": "needs root, for network namespaces" if os.geteuid() != 0 else "",
        "long": "" if config.getoption("run_long") else "runs in script/test --long",
        "spark": "needs pyspark: pip install 'statehold[spark]'" if no_spark else "",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
        if "broker" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("kafka"):
            raise pytest.UsageError(f"{item.nodeid} needs a broker: mark it `kafka`, or the fast tests start one")
    side_by_side.order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Instead of the one of --dist."""
    return side_by_side.scheduler(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how long each section took, which is a folder of tests, and the longest of what one process runs."""
    seconds: dict[str, float] = defaultdict(float)
    tests: dict[str, int] = defaultdict(int)
    longest: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                section = file.rpartition("/")[0]
                seconds[section] += report.duration
                tests[section] += report.when == "call"
                longest[side_by_side.unit(file)] += report.duration
    terminalreporter.section("sections")
    for section in sorted(seconds):
        terminalreporter.write_line(f"{section:32} {tests[section]:5} tests {seconds[section]:8.1f} s")
        if config.getoption("run_long"):
            _figures.append({"test": section, "name": "duration", "value": round(seconds[section], 1), "unit": "s"})
    terminalreporter.section("what stays together and takes longest")
    for unit in sorted(longest, key=longest.__getitem__, reverse=True)[:20]:
        terminalreporter.write_line(f"{unit:44} {longest[unit]:8.1f} s")
    _write_figures()


def pytest_unconfigure() -> None:
    """Keep pytest's closing line the last one: the client of a stopped broker may still log during the exit."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _write_figures() -> None:
    """Write the figures that tests recorded to build/test/figures.json."""
    if _figures:
        versions = {name: version(name) for name in ("statehold", "confluent-kafka", "msgspec")}
        versions |= {"python": platform.python_version(), "kafka": DEFAULT_VERSION, "librdkafka": libversion()[0]}
        file = ROOT / "build" / "test" / "figures.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"seed": SEED, "versions": versions, "figures": _figures}, indent=1) + "\n")


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Record a figure with the run's seed and versions: `figure("takeover", 1.2, "s")`."""

    def record(name: str, value: float, unit: str) -> None:
        _figures.append({"test": request.node.nodeid, "name": name, "value": value, "unit": unit})

    return record


@pytest.fixture
def seed() -> int:
    """The run's seed: random unless STATEHOLD_SEED says otherwise, printed in the header."""
    return SEED


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the tree."""
    return ROOT


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of the environment under test."""
    return sys.executable
