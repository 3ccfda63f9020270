"""Budgets and deadlines run on a monotonic clock; the wall clock only dates what people read (F32)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.support.sources import modules

ROOT = Path(__file__).resolve().parents[2]
#: where decisions are made; the wiring, tools and pages around them date things for people
FOLDERS = ("config", "balancer", "worker", "snapshot", "src/statehold/kafka")

#: where the wall clock is asked, and for what: nothing waits, times out or is deleted by it
WALL = {
    "config/token.py": "until when a token counts, as the brokers' clocks see it",
    "src/statehold/kafka/tools/command_producer.py": "the timestamp of a command record",
    "src/statehold/kafka/survey/cluster.py": "ages that the doctor shows",
    "snapshot/spark/export/export.py": "when an export was made",
    "snapshot/inspect/summaries.py": "dates and ages that people read",
}


#: modules outside ops and dev that use the time module, and for what; `Deadline` and a given clock need no entry
USES = {
    "service": "names the system's clocks; waits for its own end",
    "runtime.wiring": "names the system's clocks",
    "runtime.shutdown": "names the system's clocks",
    "runtime.topic_monitor": "names the system's clocks; dates of retention are the brokers'",
    "common.deadline": "names the system's clock for a wait",
    "common.threads": "processor time of a thread",
    "worker.calls.event_loop": "rates, outages and a blocked loop are of the process, whatever clock a partition has",
    "telemetry.log_events": "dates events for people",
    "telemetry.status_gauges": "the age of effects, whose dates are in commit records",
    "kafka.admin.admin": "waits longer while a coordinator stays silent",
    "kafka.admin.end_offsets": "the age of an answer that is kept",
    "kafka.admin.group_answers": "the age of an answer that is kept",
    "kafka.admin.group_offsets": "a pause while a coordinator loads",
    "kafka.clients.committed_reader": "names the system's clock for its reader",
    "kafka.clients.consumer": "when a new client joins",
    "kafka.clients.hanging_markers": "a pause while open transactions end",
    "kafka.clients.producer": "a pause of a commit's own thread, while the brokers write its markers",
    "kafka.clients.static_member": "when a static member joins again",
    "kafka.common.lost_brokers": "the default of a given clock",
    "kafka.common.retry": "a pause that a stop ends; once a minute for the log",
    "kafka.feeds.input_feed": "waits longer while no record comes",
    "kafka.survey.cluster": "compares the brokers' clocks with this machine's",
    "kafka.tools.command_producer": "the timestamp of a command record",
    "kafka.tools.request_producer": "waits for room in its queue, on the asker's thread",
    "worker.replicas.listing": "a pause of a query's own thread",
    "worker.replicas.queries": "a pause of a query's own thread",
    "snapshot.inspect.summaries": "dates and ages that people read",
    "snapshot.store.sink": "the default of a given clock",
    "config.token": "until when a token counts, as the brokers' clocks see it",
}
#: tools, clients and doubles that wait on a thread of their own, where no partition decides by their clock
TOOLS = ("admin", "client", "dev", "ops", "rebuild", "rehearsal", "shadow", "testing", "watch")


def uses_time(path: Path) -> bool:
    """Whether a module imports the time module."""
    return any(
        isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_the_modules_that_use_the_system_clock_are_listed(root: Path) -> None:
    inner = {name.removeprefix("statehold."): path for name, path in modules(root)}
    found = {name for name, path in inner.items() if name.split(".")[0] not in TOOLS and uses_time(path)}
    assert found == set(USES), "take a clock or a Deadline; or list the module here, with the reason"


def asks_the_wall(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in {("time", "time"), ("time", "time_ns"), ("datetime", "utcnow")}:
                return True
            if (node.value.id, node.attr) in {("datetime", "now"), ("datetime", "today")}:
                return True
    return False


def test_the_wall_clock_is_asked_where_it_is_listed_and_nowhere_else() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)) for path in files if asks_the_wall(path)}
    unknown = sorted(found - WALL.keys())
    assert not unknown, f"{unknown}: use the clock that is given (monotonic); or list it here, and say for what"


@pytest.mark.parametrize(
    "name",
    [
        "transaction/plan",
        "transaction/rollback",
        "drain",
        "common/ownership",
        "recovery/checks",
        "full_snapshots/deltas",
        "full_snapshots/truncation",
        "loop",
        "recovery/recovery",
    ],
)
def test_a_worker_decides_by_the_clock_that_it_is_given(name: str) -> None:
    source = (ROOT / "worker" / f"{name}.py").read_text(encoding="utf-8")
    assert ".wall" not in source
    assert "import time" not in source
