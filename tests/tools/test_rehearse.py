"""`statehold rehearse`: equal code is equal, every planted difference is named, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.tools.recorded import Ledger

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

#: of the recorded ledger: the position of its oldest full snapshot, and its end
OLDEST, END = 300, 970
NUMBER = "(number of outputs)"


def ends(ledger: Ledger) -> dict[tuple[str, int], int]:
    """The end of every partition of every topic of the ledger, open transactions included."""
    admin = AdminClient({"bootstrap.servers": ledger.servers})
    topics = {name: topic for name, topic in admin.list_topics(timeout=30).topics.items() if ledger.name in name}
    spec: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    places = [TopicPartition(name, p) for name, topic in topics.items() for p in topic.partitions]
    found = admin.list_offsets(dict.fromkeys(places, spec))
    return {(place.topic, place.partition): future.result(30).offset for place, future in found.items()}


def groups(ledger: Ledger) -> set[str]:
    admin = AdminClient({"bootstrap.servers": ledger.servers})
    return {group.group_id for group in admin.list_consumer_groups().result().valid if ledger.name in group.group_id}


def rewritten(ledger: Ledger, module: str, *changes: tuple[str, str]) -> str:
    """The ledger's service with other code; what commands call it."""
    target = ledger.write(module)
    path = ledger.directory / f"{module}.py"
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return target


def rehearse(ledger: Ledger, target: str, *options: str, code: int = 4) -> dict[str, Any]:
    """The report about partition 0."""
    arguments = ("rehearse", target, "--from", str(OLDEST), "--partitions", "0", *options)
    reported = ledger.json(*arguments, code=code)
    (found,) = reported["partitions"]
    assert reported["verdict"] == found["verdict"]
    assert isinstance(found, dict)
    return found


def of(found: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """What was compared of one topic (by the end of its name) or table."""
    (one,) = [each for each in found["compared"] if each["kind"] == kind and each["name"].rpartition(".")[2] == name]
    assert isinstance(one, dict)
    return one


def test_the_same_code_is_equal_and_nothing_is_written(ledger: Ledger) -> None:
    before, members = ends(ledger), groups(ledger)
    assert {ledger.names.input, ledger.names.changelog} <= {topic for topic, _ in before}

    reported = ledger.json("rehearse", ledger.target, "--from", str(OLDEST))

    assert (reported["verdict"], len(reported["partitions"])) == ("equal", 2)
    for each in reported["partitions"]:
        last = ledger.commit_records(each["partition"])[-1]
        assert (each["to_n"], each["start"], each["end"]) == (last["n"], OLDEST, END)
        assert each["records"] == END - OLDEST
        assert (each["unreadable"], each["examples"], each["notes"]) == ([], [], [])
        assert of(each, "outputs", "booked")["compared"] == END - OLDEST - 20  # twenty entries close an account
        assert of(each, "table", "balances")["compared"] >= 40
    assert (ends(ledger), groups(ledger)) == (before, members)


def test_another_result_of_one_record_is_named_with_both_sides(ledger: Ledger) -> None:
    faulty = rewritten(ledger, "one_off", ("entry.amount \n", "entry.amount + (record.offset == 650)\n"))

    found = rehearse(ledger, faulty)

    account = f"a{650 % 40}"
    output = found["examples"][0]
    (key,) = [each for each in found["examples"] if each["kind"] == "table"]
    where = f"{ledger.names.input}[0]@650"
    assert (output["kind"], output["how"], output["record"], output["fields"]) == (
        "outputs",
        "changed",
        where,
        ["balance"],
    )
    assert output["new"] == {"account": account, "balance": output["live"]["balance"] + 1}
    assert (key["kind"], key["name"], key["record"], key["key"]) == ("table", "balances", where, account)
    assert (key["fields"], key["new"]["amount"] - key["live"]["amount"]) == (["amount"], 1)
    later = len([offset for offset in range(650, END) if offset % 40 == 650 % 40])
    booked, balances = of(found, "outputs", "booked"), of(found, "table", "balances")
    assert booked["changed"] == later
    assert (booked["missing"], booked["added"], booked["fields"]) == (0, 0, {"balance": later})
    assert (balances["changed"], balances["passing"]) == (1, 0)
    assert of(found, "table", "pairs")["changed"] == 0


def test_added_and_missing_outputs_are_counted_without_shifting_the_others(ledger: Ledger) -> None:
    more = rewritten(
        ledger,
        "more",
        (
            "        self.booked.send(",
            """        if record.offset == 400:
            self.booked.send(Booked('extra', 1), key='extra')
        if record.offset != 500:
            self.booked.send(""",
        ),
    )

    found = rehearse(ledger, more)

    booked = of(found, "outputs", "booked")
    assert (booked["changed"], booked["added"], booked["missing"]) == (0, 1, 1)
    added, missing = found["examples"]
    assert (added["how"], added["record"], added["key"]) == ("added", f"{ledger.names.input}[0]@400", "extra")
    assert (missing["how"], missing["key"]) == ("missing", f"a{500 % 40}")
    first, _, last = missing["record"].partition(" to ")
    assert int(first.rpartition("@")[2]) <= 500 <= int(last.rpartition("@")[2])


def test_ignored_fields_do_not_count(ledger: Ledger) -> None:
    faulty = rewritten(
        ledger, "ignored", ("Balance(amount, before.entries + 1)", "Balance(amount, before.entries + 2)")
    )

    assert of(rehearse(ledger, faulty), "table", "balances")["fields"] == {"entries": 40}
    assert rehearse(ledger, faulty, "--ignore", "balances:amount")["verdict"] == "different"
    found = rehearse(ledger, faulty, "--ignore", "balances:entries", code=0)
    assert (found["verdict"], found["examples"]) == ("equal", [])
    assert found["ignored"]["balances:entries"] > 100


def test_a_renamed_field_with_a_default_is_found_in_the_stored_values(ledger: Ledger) -> None:
    """Every balance would read 0; so the release would not go live, and the report shows the values."""
    renamed = rewritten(
        ledger,
        "renamed",
        ("    amount: int = 0\n    entries", "    minor: int = 0\n    entries"),
        ("before.amount", "before.minor"),
    )

    found = rehearse(ledger, renamed, "--records", "1", code=5)

    assert "TableTypeChanged: table 'balances' " in found["unreadable"][0]
    stored = of(found, "stored values", "balances")
    assert stored["changed"] == 40
    assert stored["fields"] == {"amount dropped": 40, "minor filled by its default": 40}
    shown = found["examples"][0]
    assert (shown["kind"], shown["live"].keys(), shown["new"]["minor"]) == ("stored values", {"amount", "entries"}, 0)


def test_a_version_with_an_upcaster_reads_the_state_and_is_equal(ledger: Ledger) -> None:
    versioned = rewritten(
        ledger,
        "versioned",
        (
            "class Booked",
            "class New(msgspec.Struct, frozen=True):\n    minor: int = 0\n    entries: int = 0\n\n\nclass Booked",
        ),
        ("value=Balance)", "value=New, version=2, upcasters={1: from_v1})"),
        (
            "class Ledger",
            "def from_v1(old: Balance) -> New:\n    return New(old.amount, old.entries)\n\n\nclass Ledger",
        ),
        ("Balance())", "New())"),
        ("Balance(amount", "New(amount"),
        ("before.amount", "before.minor"),
    )

    found = rehearse(ledger, versioned, code=0)

    assert of(found, "table", "balances")["compared"] > 300


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("    entries: int = 0", "    entries: str = ''", "table 'balances': 40 of 40 values cannot be read"),
        ("key=str", "key=int", "table 'balances': its 40 keys cannot be read as int"),
        ("    pairs = Table", "    couples = Table", "table 'pairs': the state has"),
    ],
)
def test_code_that_cannot_read_the_state_is_the_finding(ledger: Ledger, old: str, new: str, said: str) -> None:
    target = rewritten(ledger, f"unreadable{len(new)}", (old, new))

    found = rehearse(ledger, target, code=5)

    assert any(text.startswith(said) for text in found["unreadable"]), found["unreadable"]
    assert found["records"] == 0


def test_a_record_that_the_new_code_fails_at_is_named_and_passed_over(ledger: Ledger) -> None:
    failing = rewritten(
        ledger,
        "failing",
        ("        if entry.amount == 0:", "        1 / (record.offset - 700)\n        if entry.amount == 0:"),
    )

    found = rehearse(ledger, failing)

    assert of(found, "failures", "ZeroDivisionError")["added"] == 1
    (shown,) = [each for each in found["examples"] if each["kind"] == "failures"]
    assert shown["record"] == f"{ledger.names.input}[0]@700"
    assert "division by zero" in shown["new"]
    assert found["records"] == END - OLDEST


def test_a_point_shows_its_own_state_and_not_the_newest(ledger: Ledger) -> None:
    """The planted defect: a rehearsal that reads the newest state for an old point."""
    for point in (f"{OLDEST}", "600"):
        found = ledger.json("rehearse", ledger.target, "--from", point, "--partitions", "0")["partitions"][0]
        assert found["start"] <= int(point) < found["start"] + 300
        expected = ledger.recomputed(0, found["start"])
        assert found["keys"] == len(expected) + 7  # of the table `pairs`
        assert found["verdict"] == "equal"


def test_limits_end_it_at_a_transaction(ledger: Ledger) -> None:
    found = rehearse(ledger, ledger.target, "--records", "250", code=0)
    ends_of = [record["positions"][ledger.names.input] for record in ledger.commit_records(0)]

    assert found["records"] >= 250
    assert found["end"] in ends_of
    assert found["end"] == min(end for end in ends_of if end >= OLDEST + 250)
    assert "ended by a limit" in found["notes"][0]

    wrong = ledger.run("rehearse", ledger.target, "--time", "soon")
    assert (wrong.returncode, "--time soon" in wrong.stderr) == (2, True)
    gone = ledger.run("rehearse", ledger.target, "--from", "1")
    assert (gone.returncode, "is not stored any more" in gone.stderr) == (1, True)


def test_the_text_ends_with_the_verdict(ledger: Ledger) -> None:
    faulty = rewritten(ledger, "text", ("entry.amount \n", "entry.amount + 1\n"))

    done = ledger.run("rehearse", faulty, "--from", str(OLDEST), "--show", "1")

    assert done.returncode == 4
    assert done.stdout.rstrip().splitlines()[-1].startswith("DIFFERENT: ")
    assert f"outputs {ledger.name}.booked: 650 compared, 650 changed: balance 650\n" in done.stdout
    assert (
        done.stdout.count("\n  live ") == done.stdout.count("\n  new  ") == 4
    )  # an output and a key of each partition


def test_a_backup_is_rehearsed_without_kafka(ledger: Ledger, tmp_path: Path) -> None:
    """It has no outputs: their number is compared."""
    directory = str(tmp_path / "saved")
    done = ledger.run("snapshot", "backup", ledger.target, "--to", directory, "--with-input")
    assert done.returncode == 0, done.stderr
    nowhere = ("--backup", directory, "--bootstrap-server", "127.0.0.1:1")

    found = rehearse(ledger, ledger.target, *nowhere, code=0)

    assert (found["start"], found["end"], found["records"]) == (OLDEST, END, END - OLDEST)
    assert of(found, "outputs", NUMBER)["not_compared"] == END - OLDEST - 20

    faulty = rewritten(ledger, "saved", ("entry.amount \n", "entry.amount + (record.offset == 650)\n"))
    (shown,) = rehearse(ledger, faulty, *nowhere)["examples"]
    first, _, last = shown["record"].partition(" to ")
    assert (shown["kind"], shown["key"]) == ("table", f"a{650 % 40}")
    assert int(first.rpartition("@")[2]) <= 650
    assert int((last or first).rpartition("@")[2]) >= 650
    more = rewritten(
        ledger,
        "more_saved",
        ("        self.booked.send", "        self.booked.send(Booked('', 0))\n        self.booked.send"),
    )
    assert of(rehearse(ledger, more, *nowhere), "outputs", NUMBER)["added"] == END - OLDEST - 20

    other = ledger.write("other_saved")
    path = ledger.directory / "other_saved.py"
    path.write_text(path.read_text().replace(f'Service("{ledger.name}"', 'Service("another"'))
    wrong = ledger.run("rehearse", other, *nowhere)
    assert (wrong.returncode, "is a backup of" in wrong.stderr) == (1, True)


def test_a_run_is_compared_with_the_saved_one_of_the_old_code(ledger: Ledger, tmp_path: Path) -> None:
    file = str(tmp_path / "old.jsonl")
    assert rehearse(ledger, ledger.target, "--save", file, code=0)["old_memory"] == 0

    found = rehearse(ledger, ledger.target, "--against", file, code=0)

    assert found["old_handler_seconds"] > 0 < found["old_memory"]
    again = ledger.run("rehearse", ledger.target, "--save", file)
    assert (again.returncode, "name a new file" in again.stderr) == (2, True)
    elsewhere = ledger.run("rehearse", ledger.target, "--from", "600", "--partitions", "0", "--against", file)
    assert (elsewhere.returncode, "Next: --from n:" in elsewhere.stderr) == (1, True)


def test_it_works_while_the_service_runs(kafka: Cluster, tmp_path: Path) -> None:
    made = Ledger(kafka.bootstrap_servers, tmp_path, partitions=1).create()
    with made.running():
        made.feed_in_turns(50, 50)

        found = made.json("rehearse", made.target, "--from", "n:0")

        (partition,) = found["partitions"]
        assert (found["verdict"], partition["records"], partition["end"]) == ("equal", 100, 100)
        made.feed_in_turns(50)  # the service has kept its partition, and continues
    assert made.commit_records(0)[-1]["positions"][made.names.input] == 150
