"""`statehold snapshot list`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tools.recorded import Ledger

pytestmark = pytest.mark.kafka


def test_list_shows_full_snapshots_and_commit_records_as_an_independent_reader_does(ledger: Ledger) -> None:
    reported: list[dict[str, Any]] = ledger.json("snapshot", "list", ledger.target)

    assert [each["partition"] for each in reported] == [0, 1]
    for each in reported:
        commit_record = ledger.commit_records(each["partition"])[-1]
        assert (each["commit_record"]["n"], each["commit_record"]["position"]) == (
            commit_record["n"],
            ledger.fed[each["partition"]],
        )
        assert each["commit_record"]["keys"] == commit_record["keys"]
        refs = commit_record["fulls"]
        assert [full["offset"] for full in each["full_snapshots"]] == [ref[1] for ref in refs]
        assert len(each["full_snapshots"]) == 3
        assert [full["chosen"] for full in each["full_snapshots"]] == [True, False, False]
        assert all(full["proven"] and full["maker"] == "worker" for full in each["full_snapshots"])
        assert each["restore"]["from"] == refs[0][1]
        assert each["restore"]["why"].startswith("newest usable full snapshot, then ")
        assert 0.1 <= each["restore"]["seconds"] < 0.2  # what every restore takes, and a few thousand bytes
        work, newest = each["restore"]["work"], ledger.manifests(each["partition"])[-1][1]
        assert (work["full_keys"], work["keys"]) == (newest["keys"], commit_record["keys"])
        assert work["transactions"] == commit_record["n"] - newest["first"]
        assert work["entries"] >= 60  # 20 accounts closed, 50 entries of 40 accounts: at least this number of keys
        assert each["trouble"] == ""


def test_the_names_do_where_the_code_is_not_at_hand(ledger: Ledger) -> None:
    done = ledger.run("snapshot", "list", "--name", ledger.name, "--input", ledger.names.input, "--partitions", "1")

    assert done.returncode == 0, done.stderr
    assert "starts here" in done.stdout
    assert "partition 1: a restore takes about 0." in done.stdout


def test_nothing_there_is_one_line_with_the_next_command(ledger: Ledger) -> None:
    done = ledger.run("snapshot", "list", "--name", "nobody", "--input", "nothing")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("statehold: missing on the cluster: nothing, ")
    assert "`statehold topics create " in done.stderr


@pytest.mark.long
def test_unreachable_brokers_are_reported_as_such(ledger: Ledger) -> None:
    away = ledger.run("snapshot", "list", ledger.target, "--set", "kafka.bootstrap_servers=127.0.0.1:1")

    assert (away.returncode, away.stdout) == (1, "")
    assert "do not answer" in away.stderr.splitlines()[-1]
