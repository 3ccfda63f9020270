"""`statehold snapshot verify`: what is whole is good, and every planted fault is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.support.verify import read_all
from tests.tools.recorded import Ledger

from statehold.dev import Cluster
from statehold.snapshot.format import frame

pytestmark = pytest.mark.kafka


@pytest.fixture
def alone(kafka: Cluster, tmp_path: Any) -> Ledger:
    """A ledger of the test's own, to be damaged: one partition, two full snapshots."""
    made = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    for _ in range(2):
        with made.running():
            made.feed(200)
    return made


def test_all_is_good(ledger: Ledger) -> None:
    reported = ledger.json("snapshot", "verify", ledger.target)

    for each in reported:
        commit_records = ledger.commit_records(each["partition"])
        assert (each["good"], each["findings"]) == (True, [])
        assert [full["offset"] for full in each["full_snapshots"]] == [
            at for at, _ in ledger.manifests(each["partition"])
        ]
        assert all(full["good"] and full["proven_at"] >= full["through"] for full in each["full_snapshots"])
        assert (each["n"], each["transactions"]) == (commit_records[-1]["n"], len(commit_records))
        assert each["compared"] > 3


def test_a_replay_with_the_service_s_own_handler_gives_the_next_full_snapshot_and_the_outputs(ledger: Ledger) -> None:
    reported = ledger.json("snapshot", "verify", ledger.target, "--replay")

    for each in reported:
        older, newer = ledger.manifests(each["partition"])[-2:]
        positions = [made["positions"][ledger.names.input] for _, made in (older, newer)]
        replayed = each["replay"]
        assert [replayed["start"], replayed["end"]] == positions
        assert replayed["records"] == replayed["outputs"] == positions[1] - positions[0] == 300
        assert (replayed["differences"], replayed["not_kept"]) == ([], 0)


def test_a_planted_random_is_named_with_the_first_key_and_offset(ledger: Ledger) -> None:
    faulty = ledger.write("faulty", "+ (record.offset >= 650) * random.randint(1, 9)")

    done = ledger.run("snapshot", "verify", faulty, "--replay", "--partitions", "0")
    assert done.returncode == 1
    assert f"{ledger.names.input}[0]@650: output " in done.stderr
    assert f"{ledger.names.input}[0]@650: table 'balances', key 'a{650 % 40}': the handler leaves " in done.stderr

    (reported,) = ledger.json("snapshot", "verify", faulty, "--replay", "--partitions", "0", code=1)
    first = next(each for each in reported["replay"]["differences"] if each["what"] == "key")
    assert (first["offset"], first["table"], first["key"]) == (650, "balances", f"a{650 % 40}")
    commit_record = next(
        commit_record for commit_record in ledger.commit_records(0) if commit_record["n"] == first["n"]
    )
    assert commit_record["start"] <= 650 < commit_record["positions"][ledger.names.input]


@pytest.mark.parametrize("interval", ["off", pytest.param("0.5", marks=pytest.mark.long)])
def test_digests_and_full_snapshots_find_faults_where_deltas_are_few_or_absent(
    kafka: Cluster, tmp_path: Any, interval: str
) -> None:
    """A table of which no output speaks: nothing but the state shows it."""
    ledger = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    for _ in range(2):
        with ledger.running(STATEHOLD_SNAPSHOT__DELTA_INTERVAL=interval):
            ledger.feed_in_turns(100, 100)
    good = ledger.json("snapshot", "verify", ledger.target, "--replay")[0]
    assert (good["good"], good["replay"]["differences"], good["replay"]["records"]) == (True, [], 200)

    last = ledger.json("snapshot", "verify", silent(ledger, 396), "--replay", code=1)[0]["replay"]["differences"][0]
    assert (last["what"], last["table"], last["key"]) == ("key", "pairs", ["a", 396 % 7])
    assert last["offset"] == 396

    covered = ledger.json("snapshot", "verify", silent(ledger, 296), "--replay", code=1)[0]["replay"]["differences"][0]
    commit_record = next(
        commit_record for commit_record in ledger.commit_records(0) if commit_record["n"] == covered["n"]
    )
    assert commit_record["start"] <= 296 < commit_record["positions"][ledger.names.input]


def silent(ledger: Ledger, offset: int) -> str:
    """The service with a random number in the table `pairs` at one record, which the next one but six covers."""
    target = ledger.write(f"silent{offset}")
    module = ledger.directory / f"silent{offset}.py"
    fault = f"= record.offset + (record.offset == {offset}) * random.randint(1, 9)\n"
    module.write_text(module.read_text().replace("= record.offset\n", fault))
    return target


def test_a_damaged_and_a_missing_chunk_are_named(alone: Ledger) -> None:
    rows = read_all(alone.servers, alone.names.snapshot)[0]
    manifests = alone.manifests(0)
    newest = manifests[-1][1]
    chunks = [row.value for row in rows if row.value[1:2] == b"C" and newest["full"].encode() in _body(row.value)]
    assert len(chunks) == len(newest["checksums"]) >= 1
    damaged = bytearray(chunks[0])
    damaged[-1] ^= 0xFF

    offset = alone.plant(alone.names.snapshot, bytes(damaged))
    planted = newest | {"low": offset, "maker": "compaction"}
    manifest = alone.plant(alone.names.snapshot, frame.pack(b"F", msgspec.msgpack.encode(planted)))
    done = alone.run("snapshot", "verify", alone.target)

    assert done.returncode == 1
    where = (
        f"statehold: {alone.names.snapshot}[0]@{offset}: chunk 0 of {len(chunks)} of the full snapshot at {manifest}: "
    )
    assert where in done.stderr, done.stderr

    missing = newest | {"low": manifest + 1, "maker": "compaction"}
    at = alone.plant(alone.names.snapshot, frame.pack(b"F", msgspec.msgpack.encode(missing)))
    (reported,) = alone.json("snapshot", "verify", alone.target, code=1)
    faults = [each["text"] for each in reported["findings"] if each["fault"]]
    assert f"chunk 0 of {len(chunks)} of the full snapshot at {at}: it is missing" in faults
    assert [full["good"] for full in reported["full_snapshots"]].count(True) == 2


def test_a_broken_chain_is_named_with_its_offset(alone: Ledger) -> None:
    body = msgspec.msgpack.encode([99, "stranger", "other", 0])
    offset = alone.plant(alone.names.changelog, frame.pack(b"H", body))

    done = alone.run("snapshot", "verify", alone.target)

    assert done.returncode == 1
    assert f"{alone.names.changelog}[0]@{offset}: transaction 99 follows " in done.stderr
    listed = alone.run("snapshot", "list", alone.target)
    assert listed.returncode == 1
    assert "a torn commit" in listed.stderr


def test_aborted_tails_open_transactions_and_truncated_heads_are_no_fault(alone: Ledger) -> None:
    """And nothing waits for the open transaction, whose end may never come."""
    increment = alone.names.changelog
    headers = [row.offset for row in read_all(alone.servers, increment)[0] if row.value[1:2] == b"H"]
    place = TopicPartition(increment, 0, headers[1] + 1)  # in the middle of a transaction before the older full
    admin = AdminClient({"bootstrap.servers": alone.servers})  # kept until its future is done
    admin.delete_records([place])[place].result(30)
    stranger = Producer(
        {
            "bootstrap.servers": alone.servers,
            "transactional.id": f"{alone.name}-stranger",
            "transaction.timeout.ms": 300_000,
        }
    )
    stranger.init_transactions(30)
    for ending in (stranger.abort_transaction, None):
        stranger.begin_transaction()
        stranger.produce(increment, b"foreign", partition=0)
        stranger.flush(30)
        if ending is not None:
            ending(30)

    (reported,) = alone.json("snapshot", "verify", alone.target)
    (listed,) = alone.json("snapshot", "list", alone.target)
    shown = alone.json("snapshot", "show", alone.target, "--rows", "100")[0]
    replayed = alone.json("snapshot", "verify", alone.target, "--replay")[0]["replay"]

    assert (reported["good"], listed["trouble"]) == (True, "")
    assert listed["open"] is True
    assert shown["position"] == alone.fed[0]
    assert replayed["differences"] == []
    stranger.abort_transaction(30)  # refused if it had been waited for, until the broker ended it


def _body(value: bytes) -> bytes:
    return frame.unpack(value)[1]
