"""`script/chaos --matrix`: the fault matrix F1 to F36, one scenario after the other, as a table.

A scenario is a schedule of the harness, or the tests that play it; tests are named by file and function.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.chaos.workers import ROOT

SYSTEM, NETWORK = "tests/system", "tests/network"


class Scenario(NamedTuple):
    """`codes`: faults of the harness, each several times; `tests`: what plays it instead; or a soak."""

    title: str
    codes: Sequence[str] = ()
    tests: Sequence[str] = ()
    brokers: int = 1
    soak: bool = False
    #: one trade in this number fails by design
    failing: int = 0


MATRIX: dict[str, Scenario] = {
    "F1": Scenario("worker killed, at random and at named points", ["F1", "F1p"]),
    "F2": Scenario("killed while restoring or replaying", ["F2"]),
    "F3": Scenario("all workers killed at once", ["F3"]),
    "F4": Scenario("zombie, with and without a backlog, with an open transaction", ["F4", "F4b", "F4p", "F4t"]),
    "F5": Scenario("zombie without an open transaction", ["F5"]),
    "F6": Scenario(
        "zombie past the expiry of its id",
        tests=[f"{SYSTEM}/test_hijack.py::test_a_zombie_past_the_expiry_of_its_id_commits_nothing"],
    ),
    "F7": Scenario("a stranger takes a live id", ["F7"]),
    "F8": Scenario("one of three brokers killed, coordinators among them", ["F8", "F8g", "F8t"], brokers=3),
    "F9": Scenario("one of three brokers frozen", ["F9"], brokers=3),
    "F10": Scenario(
        "one of three hosts cut off",
        tests=[f"{NETWORK}/test_unreachable.py::test_the_flow_continues_while_one_host_of_three_is_cut_off"],
    ),
    "F11": Scenario("two of three brokers killed", ["F11"], brokers=3),
    "F12": Scenario(
        "worker cut off from all brokers",
        tests=[
            f"{NETWORK}/test_unreachable.py::test_a_worker_cut_off_from_all_brokers_loses_its_partitions_and_commits_nothing"
        ],
    ),
    "F13": Scenario(
        "clients cut off from one broker: both ways, requests only, answers only",
        tests=[
            f"{NETWORK}/test_unreachable.py::test_a_partition_without_a_possible_leader_waits_and_continues_by_itself"
        ],
    ),
    "F14": Scenario("rolling restart of three brokers", ["F14"], brokers=3),
    "F15": Scenario("commit request late, repeated, unanswered", ["F15"]),
    "F16": Scenario("any transactional request late, repeated, unanswered", ["F16"]),
    "F17": Scenario("connections reset again and again", ["F17"]),
    "F18": Scenario("rebalance storm", ["F18"]),
    "F19": Scenario(
        "slow and stuck handlers",
        tests=[
            f"{SYSTEM}/test_stuck.py::test_a_record_that_takes_longer_than_max_poll_interval_costs_no_membership",
            f"{SYSTEM}/test_stuck.py::test_a_handler_that_never_comes_back_fails_its_partition_then_ends_the_process",
        ],
    ),
    "F20": Scenario(
        "manager thread blocked",
        tests=[f"{SYSTEM}/test_stuck.py::test_a_process_whose_interpreter_hangs_commits_nothing_late"],
    ),
    "F21": Scenario(
        "transaction timeout",
        tests=[
            f"{SYSTEM}/test_stuck.py::test_a_transaction_that_the_broker_has_timed_out_is_handled_again_without_a_fence_loop"
        ],
    ),
    "F22": Scenario(
        "a producer that the brokers have forgotten, its records deleted",
        tests=[
            f"{SYSTEM}/test_expiry.py::test_records_deleted_under_a_forgotten_producer_change_nothing",
            f"{SYSTEM}/test_expiry.py::test_an_id_that_has_expired_is_fenced_again_and_the_state_restored",
        ],
    ),
    "F23": Scenario("retention passes a position", ["F23"]),
    "F24": Scenario(
        "snapshots or changelogs deleted",
        tests=[
            f"{SYSTEM}/test_snapshots.py::test_a_lost_full_snapshot_is_passed_over_while_the_deltas_are_there",
            f"{SYSTEM}/test_snapshots.py::test_a_partition_is_never_live_when_its_only_base_is_lost",
            f"{SYSTEM}/test_first_start.py::test_commit_records_that_are_gone_are_damage_and_no_first_start",
        ],
    ),
    "F25": Scenario(
        "topic deleted and created again",
        tests=[f"{SYSTEM}/test_topology.py::test_an_input_recreated_while_live_is_another_topic"],
    ),
    "F26": Scenario(
        "partitions added while live",
        tests=[
            f"{SYSTEM}/test_topology.py::test_an_input_that_grows_while_live_stops_the_service_and_leaves_the_state"
        ],
    ),
    "F27": Scenario(
        "damaged chunks and frames", tests=["tests/unit/test_frame.py", "tests/unit/test_full_snapshot.py"]
    ),
    "F28": Scenario("records that fail, and kills", ["F1", "F1p", "F2", "F4", "F4p", "F15", "F18"], failing=50),
    "F29": Scenario(
        "sink's database killed, frozen, deadlocked; resets at its commit; kills between the two commits; zombies",
        tests=["tests/sinks/test_session.py", "tests/sinks/test_service.py"],
    ),
    "F30": Scenario("a broker's disk is full", tests=[f"{SYSTEM}/test_disk_full.py"]),
    "F31": Scenario("soak", soak=True),
    "F32": Scenario("wall clocks of workers stepped by days", ["F32"]),
    "F33": Scenario("compaction dies midway", tests=["tests/spark/test_killed.py"]),
    "F34": Scenario("older code after newer", tests=[f"{SYSTEM}/test_rolling_upgrade.py"]),
    "F35": Scenario("rights, password, certificate", tests=["tests/security/test_lost_access.py"]),
    "F36": Scenario("stop while all brokers are frozen", ["F36"]),
}


FIXED = "tests/chaos/test_chaos.py::test_nothing_is_lost_or_doubled_under_a_fixed_schedule_of_faults"
#: those that every run of the default tier plays, with short phases
IN_CI: dict[str, str] = {
    "F1": FIXED,
    "F4": FIXED,
    "F8": f"{NETWORK}/test_three.py::test_one_of_three_is_killed_and_comes_back",
    "F15": FIXED,
    "F18": FIXED,
    "F23": f"{SYSTEM}/test_failures.py::test_a_retention_gap_found_while_live",
    "F27": "tests/unit/test_frame.py::test_any_truncation_is_noticed",
}


def run_tests(scenario: Scenario, seed: int) -> dict[str, Any]:
    """One row: pytest in a process of its own. A test that is skipped shows nothing."""
    began = time.monotonic()
    command = [sys.executable, "script/test.py", "--long", "-q", "-p", "no:cacheprovider", *scenario.tests]
    reported = {**os.environ, "STATEHOLD_SEED": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=reported, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    closing = lines[-1].strip("= ") if lines else ""
    good = done.returncode == 0 and "passed" in closing and "skipped" not in closing
    if not good:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return {"good": good, "said": closing, "seconds": round(time.monotonic() - began, 1)}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """As it stands in docs/explanation/reliability.md."""
    lines = ["| F | what | verdict | seen |", "|---|---|---|---|"]
    for code, row in rows.items():
        lines.append(f"| {code} | {MATRIX[code].title} | {'good' if row['good'] else 'BAD'} | {row['said']} |")
    return "\n".join(lines)
