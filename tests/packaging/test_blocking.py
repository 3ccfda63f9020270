"""Every call that may block says for how long: by reading the code (docs/explanation/outages.md lists them)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("balancer", "src/statehold", "ops", "snapshot", "worker")
#: not of a running service: development brokers, the test driver, jobs on Spark
ASIDE = ("src/statehold/dev/", "src/statehold/testing/", "src/statehold/dev/pytest_plugin.py", "snapshot/spark/")

#: method of a Kafka client -> which of its arguments is the time that it may take, counted from 0
CLIENT = {
    "poll": 0,
    "consume": 1,
    "flush": 0,
    "list_topics": 1,
    "committed": 1,
    "get_watermark_offsets": 1,
    "offsets_for_times": 1,
    "init_transactions": 0,
    "commit_transaction": 0,
    "abort_transaction": 0,
    "send_offsets_to_transaction": 2,
}
#: those of futures, threads, locks and events
WAITING = {"result": 0, "join": 0, "wait": 0, "acquire": 1}
#: requests of an AdminClient return futures, and carry their time with them
REQUESTS = (
    "describe_",
    "list_offsets",
    "create_topics",
    "create_partitions",
    "delete_",
    "alter_",
    "incremental_alter_",
)
#: what needs none
UNTIMED = {
    "src/statehold/admin/inspection/local_files.py join": "a process that has sent its result, or has ended",
    "src/statehold/common/threads.py join": "its own calls have times; the watch ends a process without",
    "src/statehold/kafka/common/call_timeout.py wait": "it has ended, and raises what it raised",
    "src/statehold/service.py wait": "the program's own end",
    "ops/cli/common/bars.py join": "draws; it stops on request",
    "ops/cli/common/steps.py join": "draws; it stops on request",
    "ops/http/bounded_server.py acquire": "does not block",
    "ops/http/state.py acquire": "does not block",
    "ops/http/asgi.py result": "it is done",
    "ops/http/watch.py acquire": "does not block",
    "ops/process/reload.py wait": "after SIGKILL",
    "ops/process/systemd_status.py join": "says one line; it stops on request",
    "snapshot/store/fetch.py wait": "it has ended, and raises what it raised",
    "snapshot/store/sink.py wait": "the thread of the sink, which a closed sink ends",
    "src/statehold/client/arrivals.py result": "it is done",
    "worker/calls/event_loop.py result": "a driver runs the function of a test, which may take its time",
    "worker/participants/effect_runner.py result": "an effect has no time limit; `close` ends the wait",
    "worker/transaction/pipeline.py wait": "the commit's thread, whose own calls have times",
    "worker/transaction/rollback.py wait": "the commit's thread, whose own calls have times",
}


def calls(path: Path, where: str) -> Iterator[tuple[str, int]]:
    """Calls without a time: (method, line)."""
    methods = {**WAITING, **(CLIENT if where.startswith("src/statehold/kafka/") else {})}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, words = node.func.attr, {keyword.arg for keyword in node.keywords}
        timed = name in methods and len(node.args) <= methods[name] and "timeout" not in words
        timed = timed and not (name in ("join", "wait") and node.args)
        asked = name.startswith(REQUESTS) and "lient" in ast.dump(node.func.value) and "request_timeout" not in words
        if timed or asked:
            yield name, node.lineno


def test_every_call_that_may_block_has_a_time() -> None:
    found: dict[str, list[int]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = str(path.relative_to(ROOT))
            for name, line in () if where.startswith(ASIDE) else calls(path, where):
                found.setdefault(f"{where} {name}", []).append(line)
    untimed = {call: lines for call, lines in found.items() if call not in UNTIMED}
    assert not untimed, f"{untimed}: give them a time, or say here why they need none"
    assert not UNTIMED.keys() - found.keys(), "these are gone"


def test_no_admin_client_is_asked_for_offsets_of_a_group() -> None:
    """That ends the process when the coordinator has moved (tests/kafka/test_group_offsets.py)."""
    calling = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if ".list_consumer_group_offsets(" in path.read_text(encoding="utf-8")
    ]
    assert calling == []
