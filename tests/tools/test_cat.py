"""`statehold cat`: every kind of record as a JSON line."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.ending import ending
from tests.tools.recorded import Ledger

pytestmark = pytest.mark.kafka


def lines(ledger: Ledger, *arguments: str) -> list[dict[str, Any]]:
    done = ledger.run("cat", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_cat_prints_the_changelog_with_keys_and_values(ledger: Ledger) -> None:
    reported = lines(ledger, ledger.names.changelog, "-p", "0", "--service", ledger.target)

    commit_records = [each for each in reported if each["kind"] in ("commit-record", "initial-commit-record")]
    assert [each["n"] for each in commit_records] == [commit_record["n"] for commit_record in ledger.commit_records(0)]
    newest, written = commit_records[-1], ledger.commit_records(0)[-1]
    assert bytes.fromhex(newest["digest"])[::-1] == written["digest"]
    assert newest["writer"]["instance"] == written["writer"][0]
    assert [ref["offset"] for ref in newest["full_snapshots"]] == [ref[1] for ref in written["fulls"]]
    assert {each["kind"] for each in reported} - {"initial-commit-record"} == {
        "transaction-header",
        "changelog-chunk",
        "commit-record",
    }
    part = [each for each in reported if each["kind"] == "changelog-chunk"][-1]
    after = ledger.recomputed(0, newest["positions"][ledger.names.input])
    wrote = {each["key"]: each["value"] for each in part["entries"] if each["table"] == "balances"}
    assert wrote == {key: {"amount": after[key][0], "entries": after[key][1]} for key in wrote}
    assert wrote


def test_cat_prints_full_snapshots_by_the_topic_s_name_alone(ledger: Ledger) -> None:
    reported = lines(ledger, ledger.names.snapshot)

    assert {each["kind"] for each in reported} == {"snapshot-chunk", "snapshot-manifest"}
    for partition in (0, 1):
        manifests = [
            each for each in reported if each["kind"] == "snapshot-manifest" and each["partition"] == partition
        ]
        assert [each["offset"] for each in manifests] == [at for at, _ in ledger.manifests(partition)]
        chunk = next(
            each for each in reported if each["kind"] == "snapshot-chunk" and each["full"] == manifests[-1]["full"]
        )
        assert {"table", "key", "value"} == set(chunk["entries"][0])


def test_cat_prints_inputs_outputs_and_commands(ledger: Ledger) -> None:
    given = lines(ledger, ledger.names.input, "--service", ledger.target, "-p", "1", "--offset", "5", "-n", "2")
    assert [each["offset"] for each in given] == [5, 6]
    assert given[0]["value"] == json.loads(ledger.inputs()[1][5].value)
    assert given[0]["key"] == given[0]["value"]["account"]

    answers = lines(ledger, f"{ledger.name}.booked", "--service", ledger.target)
    assert len(answers) == sum(
        commit_record.get("outputs", 0) for at in (0, 1) for commit_record in all_commit_records(ledger, at)
    )
    assert {"partition", "n", "ordinal"} == set(answers[0]["origin"])
    assert {"account", "balance"} == set(answers[0]["value"])

    assert len(lines(ledger, ledger.names.input, "--offset", "-3", "-p", "0")) == 3
    wrong = ledger.run("cat", ledger.names.input, "-p", "0", "--offset", "99999")
    assert wrong.returncode == 1
    assert f"{ledger.names.input}[0] holds offsets 0 to {ledger.fed[0]}, not 99999" in wrong.stderr


def all_commit_records(ledger: Ledger, partition: int) -> list[dict[str, Any]]:
    """The chain is truncated behind the oldest full, the outputs are not: count what came before from them."""
    commit_records = ledger.commit_records(partition)
    first = commit_records[0]
    sent = sum(json.loads(row.value)["amount"] != 0 for row in ledger.inputs()[partition][: first["start"]])
    return [{"outputs": sent if first["n"] else 0}, *commit_records]


def test_cat_follow_prints_new_records(ledger: Ledger, tmp_path: Any) -> None:
    other = Ledger(ledger.servers, tmp_path, partitions=1).create()
    process = other.start("cat", other.names.input, "--follow", "--offset", "beginning")
    with process, ending(process):
        assert process.stdout is not None
        for _ in range(2):
            other.feed(1)
            line = json.loads(process.stdout.readline())
            assert (line["offset"], line["kind"]) == (other.fed[0] - 1, "record")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_topic_that_is_not_there(ledger: Ledger) -> None:
    done = ledger.run("cat", "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("statehold: there is no topic 'nowhere'; ")


def ends(ledger: Ledger) -> dict[str, tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": ledger.servers, "group.id": "nobody"})
    try:
        topics = consumer.list_topics(timeout=30).topics
        return {
            f"{topic}[{partition}]": consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
            for topic in topics
            for partition in topics[topic].partitions
            if ledger.name in topic or topic == "__consumer_offsets"
        }
    finally:
        consumer.close()


def test_no_looking_leaves_a_trace_on_the_cluster(ledger: Ledger) -> None:
    """No record, no group, no offset: the ends of the service's topics and of the brokers' own stay where they are."""
    before = ends(ledger)

    for command in (
        ("snapshot", "list", ledger.target, "--all"),
        ("snapshot", "show", ledger.target),
        ("snapshot", "verify", ledger.target, "--replay"),
        ("snapshot", "diff", "latest", "latest", ledger.target),
        ("snapshot", "history", "a1", ledger.target),
        ("cat", ledger.names.changelog),
    ):
        assert ledger.run(*command).returncode == 0, command

    assert ends(ledger) == before


def test_cat_says_that_there_is_nothing_yet_and_how_to_wait(ledger: Ledger) -> None:
    done = ledger.run("cat", ledger.names.changelog, "--offset", "end")
    assert (done.returncode, done.stdout) == (0, "")
    topic = ledger.names.changelog
    assert f"no committed record of {topic} was found. Next: add -f --offset end to wait for one" in done.stderr
