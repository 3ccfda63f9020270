"""Inputs and outputs whose schemas are in a real registry: what is written, what is refused, and when it is away."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import fastavro
import msgspec
import pytest
from confluent_kafka import Producer
from tests.support import verify
from tests.support.processes import await_true
from tests.support.registry import RegistryServer, registry_server

from statehold import Handler, Output, Record, Registry, Service, Table
from statehold.admin.topics import ServiceTopics
from statehold.common.names import Names
from statehold.config import load
from statehold.config.settings import Settings
from statehold.dev import Cluster
from statehold.errors import SchemaRefused, StartError

pytestmark = pytest.mark.kafka

TRADE = {
    "type": "record",
    "name": "Trade",
    "fields": [{"name": "account", "type": "string"}, {"name": "cents", "type": "long"}],
}
#: a producer that is ahead of the service, compatibly
NEWER = {**TRADE, "fields": [*TRADE["fields"], {"name": "venue", "type": "string", "default": "?"}]}


class Trade(msgspec.Struct):
    account: str
    cents: int


class Balance(msgspec.Struct):
    account: str
    cents: int


class WiderBalance(Balance):
    currency: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry")) as server:
        yield server


class Place:
    """A ledger with a registry, its topics on the shared broker."""

    def __init__(
        self, servers: str, server: RegistryServer, *, sends: type[Any] = Balance, register: bool = True
    ) -> None:
        run = uuid.uuid4().hex[:8]
        self.servers, self.server, self.booked = servers, server, f"booked-{run}"
        self.names = Names(f"ledger-{run}", f"trades-{run}", "")
        self.settings: Settings = load(env={"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": servers})
        findings = ServiceTopics(self.settings, self.names, [self.booked]).create("beginning", partitions=1)
        assert all(finding.good for finding in findings), findings
        self._producer = Producer({"bootstrap.servers": servers})
        self.use(sends, register=register)

    def use(self, sends: type[Any], *, register: bool, trade: dict[str, Any] = TRADE) -> None:
        registry = Registry(self.server.url, register=register)

        class Ledger(Handler[Annotated[Trade, registry.avro(Trade, json.dumps(trade))]]):
            balances = Table[str, int](key=str, value=int)
            booked = Output[Any](self.booked, value=registry.json(sends))

            def on_record(self, record: Record[Trade]) -> None:
                account = record.value.account
                self.balances.put(account, self.balances.get(account, 0) + record.value.cents)
                self.booked.send(sends(account, self.balances.get(account, 0)), key=account)

        self.handler = Ledger

    def service(self) -> Service:
        return Service(self.names.service, input=self.names.input, handler=self.handler, settings=self.settings)

    def write(self, schema_id: int, schema: dict[str, Any], **values: Any) -> None:
        """As any other program would: the framing by hand, the value by fastavro."""
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schema, values)
        self._producer.produce(self.names.input, b"\0" + schema_id.to_bytes(4, "big") + body.getvalue(), partition=0)
        assert self._producer.flush(30) == 0

    def balances(self) -> list[tuple[int, dict[str, Any]]]:
        """(schema id, value) of all that was booked, read without statehold and without a registry's client."""
        found = [row.value or b"" for row in verify.read_all(self.servers, self.booked).get(0, [])]
        return [(int.from_bytes(value[1:5], "big"), json.loads(value[5:])) for value in found]


def test_values_are_those_of_the_registry_and_a_newer_writer_is_understood(
    broker: Cluster, server: RegistryServer
) -> None:
    place = Place(broker.bootstrap_servers, server)
    subject = f"{place.names.input}-value"
    first, second = (server.register(subject, json.dumps(schema)) for schema in (TRADE, NEWER))
    with place.service():
        place.write(first, TRADE, account="a", cents=100)
        place.write(second, NEWER, account="a", cents=-30, venue="X")
        await_true(lambda: len(place.balances()) == 2, "both are booked")
    registered = server.request("GET", f"subjects/{place.booked}-value/versions/latest")
    assert [value for _, value in place.balances()] == [{"account": "a", "cents": 100}, {"account": "a", "cents": 70}]
    assert {schema_id for schema_id, _ in place.balances()} == {registered["id"]}
    assert "cents" in json.loads(registered["schema"])["$defs"]["Balance"]["properties"]


def test_an_output_that_is_not_registered_or_not_compatible_is_rejected_at_the_start(
    broker: Cluster, server: RegistryServer
) -> None:
    place = Place(broker.bootstrap_servers, server, register=False)
    with pytest.raises(SchemaRefused, match=rf"{place.booked}.*register it first"):
        place.service().start()
    with pytest.raises(Exception, match="404"):
        server.request("GET", f"subjects/{place.booked}-value/versions/latest")

    place.use(Balance, register=True)
    with place.service():
        pass
    place.use(Balance, register=False)
    with place.service():
        pass
    place.use(WiderBalance, register=True)  # one more required property: what is there already could not be read
    with pytest.raises(SchemaRefused, match=place.booked):
        place.service().start()


def test_an_input_that_could_not_be_read_is_rejected_at_the_start(broker: Cluster, server: RegistryServer) -> None:
    place = Place(broker.bootstrap_servers, server)
    server.register(f"{place.names.input}-value", json.dumps(TRADE))
    ahead = {**TRADE, "fields": [*TRADE["fields"], {"name": "venue", "type": "string"}]}
    place.use(Balance, register=True, trade=ahead)
    with pytest.raises(SchemaRefused, match=f"{place.names.input}-value"):
        place.service().start()


@pytest.mark.long
def test_a_registry_that_is_away_is_not_the_record_s_fault(broker: Cluster, tmp_path: Path) -> None:
    with registry_server(tmp_path) as server:
        place = Place(broker.bootstrap_servers, server)
        subject = f"{place.names.input}-value"
        first = server.register(subject, json.dumps(TRADE))
        with place.service() as service:
            place.write(first, TRADE, account="a", cents=1)
            await_true(lambda: len(place.balances()) == 1, "the first is booked")
            second = server.register(subject, json.dumps(NEWER))
            server.stop()
            place.write(first, TRADE, account="a", cents=1)  # its schema is known
            place.write(second, NEWER, account="a", cents=1, venue="X")
            await_true(lambda: "schema registry does not answer" in cause_of(service), "the partition stops", 120)
            assert f"{place.names.input}[0]@2" in cause_of(service)
            assert [value["cents"] for _, value in place.balances()] == [1, 2]

            place.use(Balance, register=True)
            with pytest.raises(StartError, match="does not answer"):
                place.service().start()

            server.start()
            # It was in memory: the same schemas in the same order have the same ids. The first was the output's.
            for name, schema, kind in (
                (
                    f"{place.booked}-value",
                    '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}',
                    "JSON",
                ),
                (subject, json.dumps(TRADE), "AVRO"),
            ):
                server.register(name, schema, kind)
            assert server.register(subject, json.dumps(NEWER)) == second
            await_true(lambda: len(place.balances()) == 3, "the third is booked", 120)


def cause_of(service: Service) -> str:
    return "".join(str(partition.get("cause") or "") for partition in service.status()["partitions"])
