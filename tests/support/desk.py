"""A small service with state worth asking for, and a client that asks as curl would."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import Producer

from statehold import Handler, Output, Record, Service, Table
from statehold.admin.topics import ServiceTopics
from statehold.bound.topics import output_topics
from statehold.config.common.secret import Secret
from statehold.config.sections.connection import GroupSettings, KafkaSettings
from statehold.config.sections.ops import OpsSettings
from statehold.config.sections.processing import CommitSettings, SnapshotSettings
from statehold.config.sections.service import ServiceSettings
from statehold.config.settings import Settings

WAIT_SECONDS = 90.0
#: seconds of a session. A broker of a machine under load may be silent for more than 6 s: then both members lose their
#: sessions, and their partitions may change places. No test here waits for the end of a session: they stop services.
SESSION = 45.0
#: the amount of an order that `Fragile` rejects
POISON = -13
TOKEN = "an-owl-in-the-attic"  # noqa: S105


class Order(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Account(msgspec.Struct, frozen=True):
    total: int = 0
    orders: int = 0


class Desk(Handler[Order]):
    """Totals per account; `gate` holds up a restore, `jam` a record, until a file is there or gone."""

    gate: Path | None = None
    jam: Path | None = None
    accounts = Table(key=str, value=Account)
    by_size = Table(key=tuple[str, int], value=int)
    done = Output("done", value=int)

    def __init__(self) -> None:
        await_true(lambda: self.gate is None or self.gate.exists(), "the gate opens")

    def on_record(self, record: Record[Order]) -> None:
        await_true(lambda: self.jam is None or not self.jam.exists(), "the jam is gone")
        order = record.value
        before = self.accounts.get(order.account, Account())
        self.accounts[order.account] = Account(before.total + order.amount, before.orders + 1)
        self.by_size[order.account, order.amount] = before.orders
        self.done.send(order.amount)


class Fragile(Desk):
    """Fails on one amount."""

    def on_record(self, record: Record[Order]) -> None:
        if record.value.amount == POISON:
            raise ValueError("this order cannot be booked")
        super().on_record(record)


class Names(NamedTuple):
    """Of one test's service and topics."""

    servers: str
    service: str
    input: str
    output: str

    @classmethod
    def new(cls, servers: str) -> Names:
        run = uuid.uuid4().hex[:8]
        return cls(servers, f"desk-{run}", f"orders-{run}", f"done-{run}")


def a_desk(names: Names, instance: str = "one", **more: Any) -> Service:
    """A service that listens on a free port; `more` are fields of `OpsSettings`, a `handler`, or other sections."""
    base = more.pop("handler", Desk)
    handler = type("Desk", (base,), {"done": Output(names.output, value=int)})
    snapshot, commit = more.pop("snapshot", SnapshotSettings()), more.pop("commit", CommitSettings())
    group = GroupSettings(session_timeout=SESSION, heartbeat_interval=1.0, standbys=more.pop("standbys", 0))
    ops = OpsSettings(**{"listen": "127.0.0.1:0", **more})
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=names.servers),
        service=ServiceSettings(instance=instance),
        group=group,
        ops=ops,
        snapshot=snapshot,
        commit=commit,
    )
    return Service(names.service, input=names.input, handler=handler, settings=settings)


def with_token(**more: Any) -> dict[str, Any]:
    return {"token": Secret(TOKEN), **more}


def create_topics(service: Service, partitions: int = 2) -> None:
    findings = ServiceTopics(service.settings, service.names, output_topics(service.handler, service.names)).create(
        "beginning", partitions=partitions
    )
    assert all(finding.good for finding in findings), findings


def feed(names: Names, orders: list[Order]) -> None:
    """Keyed by account, as other clients of Kafka would."""
    producer = Producer({"bootstrap.servers": names.servers, "partitioner": "murmur2_random"})
    for order in orders:
        producer.produce(names.input, msgspec.json.encode(order), order.account)
    assert producer.flush(WAIT_SECONDS) == 0


def await_true(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """What `condition` gives once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
    return found


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, path: str, token: str = "", method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    """One request on a connection of its own; redirects are not followed."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        given = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, place.path + path, body, {**given, **headers})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()
