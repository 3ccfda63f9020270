"""`statehold topics create | check` against a real broker."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from tests.cli.commands import Commands

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka


def test_create_is_repeatable_and_check_agrees(on_kafka: Commands) -> None:
    name = on_kafka.name
    topics = [f"{name}.in", f"{name}.out", f"{name}.{name}.in.changelog", f"{name}.{name}.in.snapshot"]

    missing = on_kafka.run("topics", "check", "app:service", "--json")
    assert missing.returncode == 1
    assert {each["topic"]: each["state"] for each in json.loads(missing.stdout)} == dict.fromkeys(topics, "missing")
    assert missing.stderr.count("\n") == 1
    assert "`statehold topics create" in missing.stderr

    rejected = on_kafka.run("topics", "create", "app:service", "--start-at", "beginning")
    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert rejected.stderr == (
        f"statehold: missing on the cluster: {name}.in, {name}.out. Nothing was created. Next: add --partitions N, "
        f"which creates input and outputs, too, or create them yourself first [statehold explain TopicMissing]\n"
    )

    created = on_kafka.run("topics", "create", "app:service", "--start-at", "beginning", "--partitions", "3")
    assert created.returncode == 0, created.stderr
    assert created.stdout.count("created") == 4
    assert "lz4" not in created.stdout

    again = on_kafka.run("topics", "create", "app:service", "--start-at", "end", "--json")
    assert again.returncode == 0, again.stderr
    assert [each["topic"] for each in json.loads(again.stdout)] == topics
    assert all(each["good"] for each in json.loads(again.stdout))

    by_names = on_kafka.run("topics", "check", "--name", name, "--input", f"{name}.in", "--output", f"{name}.out")
    assert (by_names.returncode, by_names.stderr) == (0, "")


def test_create_makes_no_topic_if_an_output_is_missing_and_has_no_number_of_partitions(
    on_kafka: Commands, kafka: Cluster
) -> None:
    name = on_kafka.name
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    given = f"{name}.in"
    admin.create_topics([NewTopic(given, 2)])[given].result(30)

    rejected = on_kafka.run("topics", "create", "app:service", "--start-at", "beginning")

    assert (rejected.returncode, rejected.stdout) == (1, "")
    assert rejected.stderr.startswith(f"statehold: missing on the cluster: {name}.out. Nothing was created. Next: ")
    assert states(on_kafka) == {given: "ok"} | dict.fromkeys(
        (f"{name}.out", f"{name}.{name}.in.changelog", f"{name}.{name}.in.snapshot"), "missing"
    )


def test_the_control_topic_is_listed_when_it_is_created_and_as_long_as_it_exists(on_kafka: Commands) -> None:
    name = on_kafka.name
    control = f"{name}.{name}.in.control"
    on_kafka.create_topics(2)
    assert control not in states(on_kafka)

    command = ("topics", "create", "app:service", "--start-at", "beginning", "--control", "--json")
    created = on_kafka.run(*command)

    assert created.returncode == 0, created.stderr
    assert {each["topic"]: each["state"] for each in json.loads(created.stdout)}[control] == "created"
    assert states(on_kafka)[control] == "ok"


def test_a_topic_that_differs_is_reported_with_the_command_that_fixes_it(on_kafka: Commands, kafka: Cluster) -> None:
    on_kafka.create_topics(1)
    increment = f"{on_kafka.name}.{on_kafka.name}.in.changelog"
    short = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, increment, incremental_configs=[short])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)

    done = on_kafka.run("topics", "check", "app:service", "--json")

    assert done.returncode == 1
    states = {each["topic"]: each["state"] for each in json.loads(done.stdout)}
    assert states[increment].startswith("differs: retention.ms=1000; fix: kafka-configs --alter ")
    assert "retention.ms=-1" in states[increment]


def test_create_makes_no_topic_for_a_start_that_is_not_valid(on_kafka: Commands) -> None:
    done = on_kafka.run("topics", "create", "app:service", "--start-at", "yesterday", "--partitions", "1")

    assert done.returncode != 0
    assert set(states(on_kafka).values()) == {"missing"}


def states(on_kafka: Commands) -> dict[str, str]:
    """What `topics check` says of each topic."""
    done = on_kafka.run("topics", "check", "app:service", "--json")
    return {each["topic"]: each["state"] for each in json.loads(done.stdout)}


@pytest.mark.parametrize("start_at", ["yesterday", "group"])
def test_a_start_position_that_cannot_be_determined_is_rejected(on_kafka: Commands, start_at: str) -> None:
    done = on_kafka.run("topics", "create", "app:service", "--start-at", start_at, "--partitions", "1")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("statehold: ")
    assert "beginning" in done.stderr
    assert done.stderr.count("\n") == 1


PRICED = """
from statehold import Handler, Output, Record, Reference, Service

class Price(Handler[str]):
    prices = Reference("{name}.prices", key=str, value=int)
    out = Output("{name}.out", value=int)

    def on_record(self, record: Record[str]) -> None:
        self.out.send(self.prices[record.value])

service = Service("{name}", input="{name}.in", handler=Price)
"""


@pytest.mark.long
def test_reference_topics_are_checked_and_created_in_development(on_kafka: Commands, kafka: Cluster) -> None:
    on_kafka.write_app(PRICED)
    prices = f"{on_kafka.name}.prices"
    command = ("topics", "create", "app:service", "--start-at", "beginning", "--partitions", "1", "--json")

    rejected = on_kafka.run(*command)
    assert rejected.returncode == 1
    assert states(on_kafka)[prices] == "missing"
    assert f"the owner of reference data creates {prices} with cleanup.policy=compact" in rejected.stderr
    assert {finding["about"]: finding["level"] for finding in diagnosed(on_kafka, "topics")} == {prices: "FAIL"}

    acl = json.loads(on_kafka.run("topics", "acl", "app:service", "--json").stdout)
    assert {(each["role"], each["operation"]) for each in acl if each["name"] == prices} == {
        ("service", "READ"),
        *((role, operation) for role in ("reader", "operator") for operation in ("DESCRIBE", "DESCRIBE_CONFIGS")),
    }

    on_kafka.environment["STATEHOLD_SERVICE__MODE"] = "development"
    without = on_kafka.run("topics", "create", "app:service", "--start-at", "beginning")
    assert f"{prices}. Nothing was created. Next: add --partitions N" in without.stderr
    created = on_kafka.run(*command)
    assert created.returncode == 0, created.stderr
    assert {each["topic"]: each["state"] for each in json.loads(created.stdout)}[prices] == "created"
    assert states(on_kafka)[prices] == "ok"
    assert {each["level"] for check in ("topics", "cleanup-policy") for each in diagnosed(on_kafka, check)} == {"PASS"}

    expiring = ConfigEntry("cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, prices, incremental_configs=[expiring])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)
    assert states(on_kafka)[prices].startswith("differs: cleanup.policy=")
    (found,) = diagnosed(on_kafka, "cleanup-policy")
    assert (found["about"], found["level"]) == (prices, "FAIL")


def diagnosed(on_kafka: Commands, check: str) -> list[dict[str, str]]:
    """What one check of `doctor` finds."""
    found: list[dict[str, str]] = json.loads(on_kafka.run("doctor", "app:service", "--only", check, "--json").stdout)[
        "findings"
    ]
    return found
