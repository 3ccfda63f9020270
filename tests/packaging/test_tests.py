"""The tests themselves: folders share helpers in tests/support alone, and what reads private members says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.test_private_access import foreign_members

#: a test module or helper, a folder or module that it imports from, and why that is no helper in tests/support
BORROWED = {
    ("tests/conftest.py", "side_by_side"): "the order of a run",
    ("tests/docs/test_guarantees.py", "chaos"): "the fault matrix names tests, which have to exist",
    ("tests/packaging/test_side_by_side.py", "side_by_side"): "what it tests",
    ("tests/system/test_calls.py", "examples"): "a service under names of its own, as the examples run",
    ("tests/driver/test_shared_chunks.py", "golden"): "a service with joins, and its records",
    ("tests/spark/test_around.py", "golden"): "Spark reads the recorded bytes with the code that wrote them",
    ("tests/spark/test_export.py", "golden"): "Spark reads the recorded bytes with the code that wrote them",
    ("tests/spark/test_release.py", "tools"): "Spark rehearses the ledger that the commands rehearse in one process",
    ("tests/spark/test_several_inputs.py", "system"): "compacts the service that the moves of both inputs leave",
}

INSIDE = "tests/support/inside.py"
THREAD = "the thread has no other sign of life, and its end is the test"
REPLACED = "the test replaces it: nothing outside makes it fail at this moment"
#: the private members of the product and of libraries that tests read, and why there is no public way
PRIVATE = {
    "tests/chaos/mutants.py": {
        "_config": "a defect planted on purpose",
        "_offset_behind": "a defect planted on purpose",
        "_side_inputs": "a defect planted on purpose",
        "_take": "a defect planted on purpose",
    },
    "tests/cli/test_control.py": {"_candidates": "leaves out root's directory, which a test must not use"},
    "tests/dev/test_cluster.py": {"_brokers": "the broker's pid, to read what it has mapped; no user needs it"},
    "tests/support/apps/killed_writing.py": {"_write": "ends the process between two rows of one write"},
    "tests/driver/test_counterexamples_memory.py": {
        "_worker": "hands the partition to a second owner, as only a group does",
    },
    "tests/driver/test_dead_letters.py": {"_factory": "the next owner has other code, in one driver"},
    "tests/driver/test_due_rows_on_disk.py": {"_index": "memory that must not grow, which no one else sees"},
    "tests/driver/test_joins_on_disk.py": {
        "_by_key": "memory that must not grow, which no one else sees",
        "_index": "memory that must not grow, which no one else sees",
        "_read": "counts reads of entries that are over, which no one else sees",
    },
    "tests/driver/test_faults.py": {"_ownership": "sets when the group last named this owner"},
    "tests/driver/test_full_stages.py": {"_enter": "counts the stages of a full snapshot, which no one else sees"},
    "tests/driver/test_hash_seed.py": {
        "_child": "kills a child in the middle of its work",
        "_processes": "kills a child in the middle of its work",
    },
    "tests/driver/test_reference.py": {
        "_ending": REPLACED,
        "_fresh": REPLACED,
        "_references": REPLACED,
    },
    "tests/driver/test_replay.py": {"_factory": "the next owner has other code, in one driver"},
    "tests/driver/test_row_search.py": {"_enter": "notes each stage of the search, which no one else sees"},
    "tests/driver/test_sink_stages.py": {
        "_closed": "a connection that must not stay open, which no one else sees",
        "_database": "the position in the database under a session, at each stage",
        "_enter": "notes each stage of the coordinator, which no one else sees",
    },
    "tests/driver/test_standby.py": {
        "_around": "changes which partitions a replica is kept of",
        "_copies": "puts an old copy back",
        "_unsaved": "memory that must not grow, which no one else sees",
    },
    "tests/driver/test_shared_chunks.py": {
        "_local_copy": "waits for the thread that writes the copy",
        "_tables": "forgets a changed key, as only a bug would",
        "_writer": "waits for the thread that writes the copy",
    },
    "tests/driver/test_ttl_and_dedupe.py": {"_index": "memory that must not grow, which no one else sees"},
    "tests/driver/test_unreadable_values.py": {"_factory": "the next owner has other code, in one driver"},
    "tests/kafka/test_late_responses.py": {"_clients": "clients that must not be kept, which no one else sees"},
    "tests/monitoring/test_faults.py": {"_shutdown": "a call with a short limit: a real one takes minutes"},
    "tests/ops/test_failed_partition.py": {"_made_by": "a line of a command, without its broker"},
    "tests/ops/test_health.py": {"_client_id": "the id goes to the brokers alone"},
    "tests/security/test_lost_access.py": {"_AGAIN_AFTER": "a short wait instead of a minute"},
    "tests/side_by_side.py": {"_split_scope": "xdist has no other way to group tests"},
    "tests/spark/test_submit.py": {"_find_spark_home": "PySpark's own way, which it does not publish"},
    "tests/system/test_idle.py": {
        "_assignment": "the queue of an idle producer, which no one else sees",
        "_handle": "the queue of an idle producer, which no one else sees",
        "_manager": "the queue of an idle producer, which no one else sees",
        "_takeover": "the queue of an idle producer, which no one else sees",
    },
    "tests/system/test_memory.py": {"_MEMORY": "a process whose memory is full, without filling it"},
    "tests/system/test_outage.py": {"_alive": REPLACED},
    "tests/system/test_several_inputs_tools.py": {
        "_head": "a proof with other facts, which the command does not write",
        "_recomputed": "a proof with other facts, which the command does not write",
    },
    "tests/unit/test_acl_hint.py": {"_ROLES": "every command that is named there has to exist"},
    "tests/unit/test_client_replacement.py": {"_memory": "what a probe of the brokers has found, without brokers"},
    "tests/unit/test_connectivity.py": {"_calls": "memory that must not grow, which no one else sees"},
    "tests/unit/test_control_feed.py": {"_thread": THREAD},
    "tests/unit/test_coordinator_watch.py": {
        "_answered": "one turn at a time, without the watch's thread",
        "_asking": "one turn at a time, without the watch's thread",
        "_question": "one turn at a time, without the watch's thread",
    },
    "tests/unit/test_credential_renewal.py": {"_renewed": "one renewal at a time, without its thread"},
    "tests/unit/test_error_actions.py": {
        "_handle": "a client that raises what only a broken broker makes it raise",
        "_read": "reads without a broker, which the public call asks for bounds first",
    },
    "tests/unit/test_freeze_guard.py": {"_ends_when_frozen": "whether a setting counts, without a frozen process"},
    "tests/unit/test_full_snapshot.py": {
        "_logs": "the reader of the test gets the owner's log",
        "_size": "the size that a chunk was cut by",
    },
    "tests/unit/test_many_reads.py": {
        "_asking": "sets back how many partitions were counted, which no user can",
        "_partitions": "sets back how many partitions were counted, which no user can",
    },
    "tests/unit/test_merging_mailbox.py": {
        "_changed": "wakes when the mailbox begins to wait",
        "_ending": "a feed whose turns happen one by one, without its thread",
        "_thread": "a feed whose turns happen one by one, without its thread",
        "_turns": "a feed whose turns happen one by one, without its thread",
    },
    "tests/unit/test_queries.py": {
        "_stored": "one read between two commits, without a server",
    },
    "tests/unit/test_table.py": {
        "_cache": "memory that must not grow, which no one else sees",
        "_keys": "memory that must not grow, which no one else sees",
    },
    "tests/unit/test_topology.py": {"_client": "that the client is the renewed one, without a broker"},
    "tests/worker/test_full_snapshots.py": {
        "_records": "damages a stored record",
        "_value": "damages a stored record",
    },
    "tests/worker/test_manager.py": {
        "_consumer": "one turn at a time, without the manager's thread",
        "_drain_all": "one turn at a time, without the manager's thread",
        "_logged_errors": "which errors count as logged; the log shows only that one was",
        "_turn": "one turn at a time, without the manager's thread",
    },
    "tests/worker/test_memory.py": {"_takeover": "weak references to all that a worker holds"},
    "tests/worker/test_signals.py": {
        "_ended": "a manager of the test ends the service as the real one does",
        "_phases": REPLACED,
        "_thread": THREAD,
    },
    "tests/worker/test_undo.py": {
        "_membership": "the group's answer, without a group",
        "_signals": "the group's revocation, without a group",
    },
}


def sources(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((root / "tests").rglob("*.py")):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def test_folders_share_helpers_in_support_alone(root: Path) -> None:
    found = set()
    for name, source in sources(root):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
                for target in (
                    [node.module or ""] if node.module != "tests" else [f"tests.{a.name}" for a in node.names]
                ):
                    folder = target.split(".")[1]
                    if folder not in ("support", name.split("/")[1]):
                        found.add((name, folder))
    assert found == set(BORROWED), "move what two folders need to tests/support, or name it here with the reason"


def test_a_test_that_reads_a_private_member_says_why(root: Path) -> None:
    found: dict[str, set[str]] = {}
    for name, source in sources(root):
        if name != INSIDE and (members := {member for member, _ in foreign_members(source)}):
            found[name] = members
    listed = {name: set(members) for name, members in PRIVATE.items()}
    new = {name: sorted(members - listed.get(name, set())) for name, members in found.items()}
    assert not {name: members for name, members in new.items() if members}, "use a public way, or say here why"
    assert found == listed, "an exception that is not needed any more"


def test_contributing_says_what_each_folder_proves(root: Path) -> None:
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `tests/(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    folders = {path.name for path in (root / "tests").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert sorted(folder for folder, _ in rows) == sorted(folders)
