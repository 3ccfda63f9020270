"""What each role really asks of the brokers, read off their authorizer: what `topics acl` lists, and no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from tests.security.test_rights import CALLS, FULL_SNAPSHOTS, SHAPE, Calls
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.secured import Right as Rule
from tests.support.secured import Secured, secured
from tests.support.stage import Stage

from statehold.admin.topics import ServiceTopics
from statehold.common.access_rights import CLUSTER, IDS, Right, rights_of
from statehold.config import client, load
from statehold.kafka.admin import acl_check

pytestmark = pytest.mark.kafka

#: the authorizer's own line for each question
ASKED = re.compile(
    r"Principal = User:(\S+) is (Allowed|Denied) operation = (\w+) from host = \S+ "
    r"on resource = (\w+):LITERAL:(\S+) for"
)
#: what Kafka gives with another right
BRINGS_DESCRIBE = {"READ", "WRITE", "DELETE"}
KINDS = {"Topic": "topic", "Group": "group", "TransactionalId": IDS, "Cluster": CLUSTER}
SERVED = "tests.support.apps.served:service"
#: operation, kind, name
Use = tuple[str, str, str]


@pytest.fixture(scope="module")
def telling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker that writes down what is asked of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATEHOLD_DEV_AUTHORIZER_LOG", "debug")
        with secured(tmp_path_factory.mktemp("telling")) as broker:
            yield broker


@pytest.fixture(scope="module")
def stage(telling: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(telling.servers, tmp_path_factory.mktemp("calls"), 2).create_topics()
    ServiceTopics(made.settings(), made.names, [made.output]).create("beginning", control=True)
    for role in ("service", "reader", "commander", "producer", "operator", "compactor"):
        telling.scram(f"{made.names.service}-{role}")
        telling.grant(*(_rule(made, role, right) for right in _rights(made, role)))
    with Local(made, **_login(telling, made, "service"), **FULL_SNAPSHOTS) as local:
        local.await_live(0, 1)
        made.feed(300)
        made.await_all()
    yield made
    made.close()


def _rights(stage: Stage, role: str) -> list[Right]:
    return rights_of(role, stage.names, [stage.output])


def _rule(stage: Stage, role: str, right: Right) -> Rule:
    return Rule(f"{stage.names.service}-{role}", right.operation, right.kind, right.name, right.prefixed)


def _login(broker: Secured, stage: Stage, role: str) -> dict[str, str]:
    return broker.scram(f"{stage.names.service}-{role}")


def uses(broker: Secured, stage: Stage, role: str, answer: str = "Allowed") -> set[Use]:
    """What was asked in this role's name until now and answered so."""
    log = (broker.cluster.directory / "broker-1" / "broker.log").read_text(errors="replace")
    found = {
        (each[3], KINDS[each[4]], each[5])
        for each in ASKED.finditer(log)
        if (each[1], each[2]) == (f"{stage.names.service}-{role}", answer)
    }
    # A reader of partitions looks for the coordinator of a group that it never joins, and needs it for nothing.
    return {use for use in found if use[1] != "group" or not use[2].endswith(".reader")}


def unused(rights: list[Right], used: set[Use]) -> list[str]:
    """But for one that is needed where brokers have left a transaction open (`kafka/clients/hanging_markers.py`)."""
    wanted = [right for right in rights if not (right.optional and "left open" in right.why)]
    return [str(right) for right in wanted if not any(_covers(right, use) for use in used)]


def _covers(right: Right, use: Use) -> bool:
    operation, kind, name = use
    same = name.startswith(right.name) if right.prefixed else name == right.name
    return (right.operation, right.kind) == (operation, kind) and same


def unlisted(rights: list[Right], used: set[Use]) -> set[Use]:
    """Uses that no right covers, neither as it is nor by the DESCRIBE that comes with it."""
    implied = [right._replace(operation="DESCRIBE") for right in rights if right.operation in BRINGS_DESCRIBE]
    return {use for use in used if not any(_covers(right, use) for right in [*rights, *implied])}


def agrees(broker: Secured, stage: Stage, role: str) -> None:
    """Each right of the list is used, each use is listed, and nothing is asked for that is refused."""
    rights, used = _rights(stage, role), uses(broker, stage, role)
    assert unused(rights, used) == []
    assert unlisted(rights, used) == set()
    assert uses(broker, stage, role, "Denied") == set()


@pytest.mark.long
def test_the_service_uses_each_of_its_rights_and_no_other(telling: Secured, stage: Stage) -> None:
    with Local(stage, **_login(telling, stage, "service"), **FULL_SNAPSHOTS) as local:
        local.await_live(0, 1)
        stage.feed(300)
        stage.await_all()
        await_true(lambda: not unused(_rights(stage, "service"), uses(telling, stage, "service")), "truncation", 120)
    agrees(telling, stage, "service")


SHAPES = [str(right) for right in rights_of("service", SHAPE, ["output"]) if not right.optional]


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_a_service_without_one_of_its_rights_is_denied_just_that(
    telling: Secured, stage: Stage, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the start's own look at rights may say: it is left out here, and the brokers refuse the work itself."""
    every = [right for right in _rights(stage, "service") if not right.optional]
    right = every[SHAPES.index(shape)]
    monkeypatch.setattr("statehold.service.require_rights", lambda *_: None)
    monkeypatch.setattr(acl_check.RoleAccess, "granted", lambda _: True)
    before = uses(telling, stage, "service", "Denied")
    with telling.without(_rule(stage, "service", right)):
        with suppress(Exception), Local(stage, **_login(telling, stage, "service"), **FULL_SNAPSHOTS):
            stage.feed(50)
            await_true(lambda: any(_covers(right, use) for use in denied(telling, stage) - before), shape, 120)
        if not any(_covers(right, use) for use in denied(telling, stage) - before):
            # What was refused first may have been the DESCRIBE that comes with it; the start ends there.
            assert any(_covers(right._replace(operation="DESCRIBE"), use) for use in denied(telling, stage) - before)
    with Local(stage, **_login(telling, stage, "service")) as local:
        local.await_live(0, 1)
        stage.await_all(120)


def denied(broker: Secured, stage: Stage) -> set[Use]:
    return uses(broker, stage, "service", "Denied")


def produce(broker: Secured, stage: Stage) -> None:
    """As any program would that writes the input with idempotence."""
    settings = load(env=_login(broker, stage, "producer"))
    producer = Producer(client.full_producer(settings))
    producer.produce(stage.names.input, b'{"id":0,"amount":1}', "k")
    assert producer.flush(60) == 0


def command(broker: Secured, stage: Stage, role: str, calls: Calls) -> None:
    ours, theirs = os.pipe()  # the service's module ends when no process holds the other end
    environment: dict[str, Any] = {**os.environ, **stage.environment(**_login(broker, stage, role))}
    named = ["--name", stage.names.service, "--input", stage.names.input]
    try:
        for arguments, by_name in calls:
            line = [sys.executable, "-m", "statehold.ops.cli.entry", *arguments, *(named if by_name else ())]
            done = subprocess.run(
                line, env=environment, stdin=ours, capture_output=True, text=True, timeout=300, check=False
            )
            said = f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            assert done.returncode == 0, f"{said}\nrefused: {uses(broker, stage, role, 'Denied')}"
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.long
@pytest.mark.parametrize("role", CALLS)
def test_a_role_of_commands_uses_each_of_its_rights_and_no_other(telling: Secured, stage: Stage, role: str) -> None:
    with Local(stage, **_login(telling, stage, "service")) as local:
        local.await_live(0, 1)
        command(telling, stage, role, CALLS[role](stage))
    agrees(telling, stage, role)


@pytest.mark.long
def test_a_producer_uses_its_right_and_no_other(telling: Secured, stage: Stage) -> None:
    produce(telling, stage)
    stage.count(1)
    agrees(telling, stage, "producer")


@pytest.mark.long
@pytest.mark.spark
def test_a_compactor_uses_each_of_its_rights_and_no_other(telling: Secured, stage: Stage) -> None:
    with Local(stage, **_login(telling, stage, "service"), STATEHOLD_SNAPSHOT__ON_STOP="off") as local:
        local.await_live(0, 1)
        stage.feed(500, keys=100)
        stage.await_all()
    command(telling, stage, "compactor", [(["compact", "--keep", "1"], True)])
    agrees(telling, stage, "compactor")


@pytest.mark.long
def test_an_operator_uses_each_of_its_rights_and_no_other(telling: Secured, stage: Stage, tmp_path: Path) -> None:
    """Creates topics, adopts offsets, restores a backup and repartitions the state. Must be the last test."""
    names, why = stage.names, ["--why", "x"]
    delete_own_topics(telling, stage)
    operate(telling, stage, ["topics", "create", SERVED, "--start-at", "beginning", "--control"])
    with Local(stage, **_login(telling, stage, "service"), **FULL_SNAPSHOTS) as local:
        local.await_live(0, 1)
        stage.feed(300)
        stage.await_all()
        command(telling, stage, "operator", CALLS["reader"](stage))
    reset = ConsumerGroupTopicPartitions(names.group, [TopicPartition(names.input, 0, 1)])
    telling.admin.alter_consumer_group_offsets([reset])[names.group].result(30)
    operate(telling, stage, ["repair", "adopt-offsets", SERVED, "--from", "commit-record", "--yes", *why])
    operate(telling, stage, ["snapshot", "backup", SERVED, "--to", str(tmp_path / "backup")])
    delete_own_topics(telling, stage)
    back = ["--from", str(tmp_path / "backup"), "--input-at", "same", "--accept-duplicates"]
    operate(telling, stage, ["snapshot", "restore", SERVED, *back, "--yes", *why])
    operate(telling, stage, ["state", "repartition", SERVED, "--to", "3", "--quiet", "0", "--yes", *why])
    agrees(telling, stage, "operator")


def operate(broker: Secured, stage: Stage, call: list[str]) -> None:
    command(broker, stage, "operator", [(call, False)])


def delete_own_topics(broker: Secured, stage: Stage) -> None:
    """The service's own topics are gone."""
    names = stage.names
    for future in broker.admin.delete_topics([names.changelog, names.snapshot, names.control]).values():
        with suppress(KafkaException):  # a restore makes no control topic
            future.result(30)
    there = broker.admin.list_topics
    await_true(
        lambda: not {names.changelog, names.snapshot, names.control} & set(there(timeout=30).topics), "they are gone"
    )
