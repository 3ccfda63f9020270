"""`statehold snapshot show | diff | history`, against the input recomputed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.tools.recorded import Ledger

pytestmark = pytest.mark.kafka


def balances(reported: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {
        row["key"]: (row["value"]["amount"], row["value"]["entries"])
        for row in reported["rows"]
        if row["table"] == "balances"
    }


def test_the_newest_state_is_the_input_folded(ledger: Ledger) -> None:
    reported = ledger.json("snapshot", "show", ledger.target, "--rows", "1000")

    assert [each["position"] for each in reported] == ledger.fed
    for each in reported:
        commit_record = ledger.commit_records(each["partition"])[-1]
        assert balances(each) == ledger.recomputed(each["partition"], each["position"])
        assert bytes.fromhex(each["digest"])[::-1] == commit_record["digest"]
        assert (each["n"], each["keys"]) == (commit_record["n"], commit_record["keys"])


@pytest.mark.parametrize("typed", [True, False], ids=["with the code", "by the names"])
def test_the_state_at_a_position_is_that_of_the_commit_record_before_it(ledger: Ledger, typed: bool) -> None:
    about = [ledger.target] if typed else ["--name", ledger.name, "--input", ledger.names.input]
    position = 650

    reported = ledger.json("snapshot", "show", *about, "--partitions", "0", "--at", str(position), "--rows", "1000")[0]

    commit_records = [commit_record["positions"][ledger.names.input] for commit_record in ledger.commit_records(0)]
    assert reported["position"] == max(at for at in commit_records if at <= position)
    assert balances(reported) == ledger.recomputed(0, reported["position"])
    pairs = [row["key"] for row in reported["rows"] if row["table"] == "pairs"]
    assert ["a", 3] in pairs


def test_one_key_is_found_or_reported_missing(ledger: Ledger) -> None:
    (row,) = ledger.json("snapshot", "show", ledger.target, "--key", "b7", "--partitions", "1")[0]["rows"]
    assert row["value"]["amount"] == ledger.recomputed(1, ledger.fed[1])["b7"][0]

    pair = ledger.json("snapshot", "show", ledger.target, "--key", '["a", 3]', "--partitions", "0")[0]["rows"]
    assert [each["table"] for each in pair] == ["pairs"]

    absent = ledger.run("snapshot", "show", ledger.target, "--key", "zebra")
    assert absent.returncode == 4
    assert "`statehold snapshot history zebra`" in absent.stderr


@pytest.mark.parametrize("beyond", ["100000", "n:100000"])
def test_a_point_beyond_the_end_is_an_error(ledger: Ledger, beyond: str) -> None:
    done = ledger.run("snapshot", "show", ledger.target, "--at", beyond, "--partitions", "0")

    assert done.returncode == 1
    assert done.stdout == ""
    assert f"beyond the end: the last commit record has position {ledger.fed[0]}" in done.stderr


def test_an_error_of_a_deleted_state_names_the_states_that_exist(ledger: Ledger) -> None:
    done = ledger.run("snapshot", "show", ledger.target, "--at", "5", "--partitions", "0")

    oldest = ledger.manifests(0)[0][1]
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "position 5 is not stored any more: the oldest usable full snapshot has position " in done.stderr
    assert f"{oldest['positions'][ledger.names.input]} (transaction {oldest['first']})" in done.stderr

    wrong = ledger.run("snapshot", "show", ledger.target, "--at", "yesterday")
    assert wrong.returncode == 1
    assert "'yesterday' is not a point: use latest, " in wrong.stderr


def test_a_difference_is_that_of_the_recomputed_states(ledger: Ledger) -> None:
    a, b = (f"full:{offset}" for offset, _ in (ledger.manifests(0)[0], ledger.manifests(0)[-1]))

    reported = ledger.json("snapshot", "diff", a, b, ledger.target, "--partitions", "0", "--limit", "1000", code=4)[0]

    old, new = (ledger.recomputed(0, reported[at]["position"]) for at in "ab")
    changed = {key for key in old.keys() & new.keys() if old[key] != new[key]}
    rows = [row for row in reported["keys"] if row["table"] == "balances"]
    assert {row["key"] for row in rows if row["what"] == "changed"} == changed
    assert {row["key"]: row["new"]["amount"] for row in rows} == {key: new[key][0] for key in changed}
    assert {row["key"]: row["old"]["amount"] for row in rows} == {key: old[key][0] for key in changed}
    assert reported["changed"] == len([row for row in reported["keys"] if row["what"] == "changed"])

    same = ledger.run("snapshot", "diff", b, b, ledger.target, "--partitions", "0")
    assert (same.returncode, same.stderr) == (0, "")
    assert "0 added, 0 changed, 0 removed" in same.stdout


def test_removed_keys_are_shown(ledger: Ledger) -> None:
    """The accounts that were closed at 900 come back at 920."""
    reported = ledger.json("snapshot", "diff", "900", "920", ledger.target, "--partitions", "0", code=4)[0]

    assert (reported["a"]["position"], reported["b"]["position"]) == (900, 920)
    gone = [row for row in reported["keys"] if row["what"] == "removed"]
    assert {row["key"] for row in gone} == ledger.recomputed(0, 900).keys() - ledger.recomputed(0, 920).keys()
    assert reported["removed"] == len(gone) == 20
    assert all(row["new"] is None for row in gone)


def test_the_history_of_a_key_is_what_each_kept_delta_did(ledger: Ledger) -> None:
    reported = ledger.json("snapshot", "history", "a25", ledger.target)

    commit_records = {commit_record["n"]: commit_record for commit_record in ledger.commit_records(0)}
    assert len(reported) > 3
    for each in reported:
        commit_record = commit_records[each["n"]]
        before, after = ledger.recomputed(0, commit_record["start"]), ledger.recomputed(0, each["position"])
        assert each["position"] == commit_record["positions"][ledger.names.input]
        assert (each["time"], each["writer"]) == (commit_record["time"], commit_record["writer"][0])
        if each["old_known"]:
            assert (each["old"] and each["old"]["amount"]) == (before["a25"][0] if "a25" in before else None)
        assert (each["new"] and each["new"]["amount"]) == (after["a25"][0] if "a25" in after else None)
        assert before.get("a25") != after.get("a25")
    assert reported[-1]["old_known"]
    every = [
        n
        for n, commit_record in commit_records.items()
        if n and commit_record["start"] >= 0 and _differs(ledger, commit_record)
    ]
    assert [each["n"] for each in reported] == every

    unknown = ledger.run("snapshot", "history", "zebra", ledger.target, "--json")
    assert (unknown.returncode, json.loads(unknown.stdout)) == (4, [])


def _differs(ledger: Ledger, commit_record: dict[str, Any]) -> bool:
    before = ledger.recomputed(0, commit_record["start"]).get("a25")
    return before != ledger.recomputed(0, commit_record["positions"][ledger.names.input]).get("a25")
