"""What a state query sees of a table: what has committed, not what was written or is committing; its waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec
import pytest
from tests.support.inside import lane

from statehold import Handler, Int64, Record, Service, Table
from statehold.bound.attributes import tables_and_outputs
from statehold.bound.table import bind
from statehold.bound.topics import class_of
from statehold.client.owner_reads import key_text
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import Settings
from statehold.errors import StateUnavailable, TransactionAborted, UsageError
from statehold.ops.http import state
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered
from statehold.ops.http.key_lookup import BEHIND, Elsewhere, Finder, Found, NotLive, _stored
from statehold.ops.http.query_fields import key_of, keys_of
from statehold.ops.http.state import Queries
from statehold.runtime.local_reads import LocalReads
from statehold.state.partition_table import PartitionTable
from statehold.testing import Driver
from statehold.worker.replicas.listing import KeyBounds, keys_within, several
from statehold.worker.replicas.queries import Committed


def seen(table: PartitionTable[str, int], key: str) -> tuple[list[str], list[int | None]]:
    """The keys that a list shows, and the value by both ways of asking."""
    tables = {"totals": table}
    found = [_stored("totals", key, tables), *several("totals", [key], tables)]
    return list(keys_within(table, KeyBounds())), [None if data is None else table.decode(data) for data in found]


def test_only_what_has_committed_is_seen() -> None:
    table = bind(Table(key=str, value=int))
    table.name = "totals"
    table["ann"] = 1
    assert seen(table, "ann") == ([], [None, None])
    table.freeze()
    assert seen(table, "ann") == ([], [None, None])  # its commit is under way
    table.commit()
    assert seen(table, "ann") == (["ann"], [1, 1])
    table["ann"] = 2
    del table["ann"]
    assert seen(table, "ann") == (["ann"], [1, 1])
    table["ann"] = 3
    table.freeze()
    assert seen(table, "ann") == (["ann"], [1, 1])
    table.commit()
    assert seen(table, "ann") == (["ann"], [3, 3])


class Sums(Handler[int]):
    totals = Table(key=str, value=int)
    blobs = Table(key=bytes, value=int)
    numbers = Table(key=int, value=int)

    def on_record(self, record: Record[int]) -> None:
        self.totals["5"] = self.blobs[b"5"] = self.numbers[5] = record.value


class Tries(Handler[int]):
    """Writes the number of the attempt: an aborted transaction has written another value than a committed one."""

    totals = Table(key=str, value=int)
    tries = count()

    def on_record(self, record: Record[int]) -> None:
        self.totals["5"] = next(self.tries)


def test_a_read_never_returns_what_an_aborted_transaction_wrote() -> None:
    driver, seen, kept = Driver(Tries), set[int](), set[int]()
    driver.feed(0, "5")
    driver.commit()
    live, record = lane(driver).engine().state, driver.commit_record(0)
    overview: Any = SimpleNamespace(committed=lambda: {0: Committed(live, lambda: record)})
    reads = LocalReads(lambda: overview, Names("input", "input"))

    def look(_: str) -> None:
        seen.update(reads.values("totals", ["5"], 0, -1) or [])

    driver.broker.on_call = look
    for number in range(12):
        kept.update(driver.table("totals").values())
        for _ in range(number % 3):
            driver.broker.fail("commit", TransactionAborted("no"))
        driver.feed(number, "5")
        driver.commit()
    look("")
    kept.update(driver.table("totals").values())
    assert seen == kept
    assert next(Tries.tries) > len(kept), "some were aborted"


def query(queries: Queries, **fields: str) -> HttpAnswer:
    return answered(queries.answer, HttpRequest("GET", "/state/totals/ann", fields))


def test_a_few_queries_wait_for_a_record_and_the_others_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = threading.Event()

    def find(*_: Any) -> Found:
        if committed.is_set():
            return Found(7, 0, 1, 6)
        raise NotLive("behind", 0, BEHIND)

    monkeypatch.setattr(Finder, "find", find)
    monkeypatch.setattr(state, "_LONGEST", 60.0)
    queries = Queries(Service("s", input="i", handler=Sums, settings=Settings()))
    with ThreadPoolExecutor(12) as threads:
        waiting = as_completed([threads.submit(query, queries, after="0:5") for _ in range(12)])
        try:
            for _ in range(4):
                answer = next(waiting).result(20)
                assert (answer.status, answer.headers) == (503, {"Retry-After": "1"})
        finally:
            committed.set()
        assert [each.result(20).status for each in waiting] == [200] * 8


def test_a_redirect_keeps_the_record_that_the_answer_must_include(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: Any) -> Found:
        raise Elsewhere("it is elsewhere", 2, {"url": "http://b:1"}, [])

    monkeypatch.setattr(Finder, "find", find)
    queries = Queries(Service("s", input="i", handler=Sums, settings=Settings()))
    answer = query(queries, redirect="1", after="2:48211")
    assert answer.headers["Location"] == "http://b:1/state/totals/ann?partition=2&after=2:48211"
    assert query(queries, redirect="1").headers["Location"] == "http://b:1/state/totals/ann?partition=2"


class Numbered(Handler[int, int]):
    numbers = Table(key=int, value=int)
    pairs = Table(key=tuple[str, int], value=int)
    owners = Table(key=UUID, value=int)

    def on_record(self, record: Record[int, int]) -> None:
        self.numbers[record.key] = self.pairs["a", 1] = self.owners[UUID(int=1)] = record.value


@pytest.mark.parametrize(("kind", "data"), [(Int64(), (7).to_bytes(8, "big")), (int, b"7"), (None, b"7")])
def test_the_home_of_a_key_follows_the_declared_type_of_the_records_keys(kind: Any, data: bytes) -> None:
    handler = Service("s", input="x", handler=Sums, key=kind).handler
    phases = [{"partition": number, "phase": "restoring"} for number in range(12)]
    overview = SimpleNamespace(committed=lambda oldest: {}, partitions=12)
    service: Any = SimpleNamespace(
        names=Names("s", "x"), handler=handler, overview=overview, status=lambda: {"partitions": phases}, url=""
    )
    with pytest.raises(NotLive) as found:
        Finder(service).find("numbers", 7)
    assert found.value.partition == murmur2(data, 12)


@pytest.mark.parametrize(
    ("table", "key"),
    [("numbers", 7), ("pairs", ("a,/%", 1)), ("owners", UUID(int=1))],
)
def test_a_client_writes_a_key_of_any_type_as_a_path_is_read(table: str, key: Any) -> None:
    declared = tables_and_outputs(class_of(Numbered))[0][table]
    assert key_of(declared, key_text(key)) == key
    asked = HttpRequest("GET", f"/state/{table}", {"keys": unquote(quote(f"{key_text(key)},{key_text(key)}"))})
    assert keys_of(declared, asked) == [key, key]


class Place(msgspec.Struct, frozen=True):
    row: int = 0


class Placed(Handler[int]):
    places = Table(key=Place, value=int)


def test_a_key_that_is_nested_too_deep_is_rejected() -> None:
    declared = tables_and_outputs(class_of(Placed))[0]["places"]
    with pytest.raises(Rejected, match="is no key of table 'places'"):
        key_of(declared, '{"x":' + "[" * 3000)


def test_a_key_that_no_table_has_is_an_error_of_the_client() -> None:
    with pytest.raises(UsageError, match="is no key of a table"):
        key_text(object())


def test_a_read_in_the_owners_process_takes_typed_keys() -> None:
    driver = Driver(Numbered)
    driver.feed(7, 7)
    driver.commit()
    live, record = lane(driver).engine().state, driver.commit_record(0)
    overview: Any = SimpleNamespace(committed=lambda: {0: Committed(live, lambda: record)})
    reads = LocalReads(lambda: overview, Names("input", "input"))
    for table, key in (("numbers", 7), ("pairs", ("a", 1)), ("owners", UUID(int=1))):
        assert reads.values(table, [key], 0, -1) == [7]
    for wrong in (("a", 1), UUID(int=1), object()):
        with pytest.raises(StateUnavailable, match="no key of this table"):
            reads.values("numbers", [wrong], 0, -1)


def test_a_read_in_the_owners_process_takes_a_key_as_a_path_does_and_waits_for_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(Sums)
    driver.feed(7, "5")
    driver.commit()
    live, record = lane(driver).engine().state, driver.commit_record(0)
    overview: Any = SimpleNamespace(committed=lambda: {0: Committed(live, lambda: record)})

    def read(table: str, key: str | bytes | int) -> list[Any] | None:
        return LocalReads(lambda: overview, Names("input", "input")).values(table, [key], 0, -1)

    for table in ("totals", "blobs", "numbers"):
        assert [read(table, key) for key in ("5", b"5", 5)] == [[7]] * 3
    with pytest.raises(StateUnavailable, match=r"numbers\['ann'\]: no key of this table"):
        read("numbers", "ann")
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits"))
    monkeypatch.setattr(live, "version", live.version + 1)  # a commit is being applied
    assert read("totals", "5") is None
