"""Reads of many keys and of ranges: what a `Client` gets from owners, over HTTP and in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from statehold import Client, Handler, Receipt, Record, Service, Table
from statehold.bound.attributes import tables_and_outputs
from statehold.client import asking, owner_reads
from statehold.client.rows import RowPage
from statehold.common.names import Names
from statehold.common.partitioner import murmur2
from statehold.config import Settings
from statehold.errors import StateUnavailable, UsageError
from statehold.messages.command import PAUSE, Command
from statehold.ops.http import state as state_queries
from statehold.ops.http.answers import HttpAnswer, HttpRequest, Rejected, answered, as_json
from statehold.ops.http.bounded_server import BoundedServer
from statehold.ops.http.guard import RequestGuard
from statehold.ops.http.state import Queries
from statehold.ops.supervisor import routes as supervisor
from statehold.ops.supervisor.asking import passed_on
from statehold.ops.supervisor.routes import FleetRoutes
from statehold.runtime.local_reads import LocalReads
from statehold.snapshot.format.records import CommitRecord
from statehold.watch.position import WatchedTo, parse
from statehold.worker.replicas import listing
from statehold.worker.replicas.listing import KeyBounds, keys_within, rows_within
from statehold.worker.replicas.queries import Busy, Committed
from statehold.worker.status import PartitionStatus

NAMES = [f"{country}-{i}" for country in ("AT", "DE", "FR") for i in range(40)] + ["a,b", "50%", "ü/ö", ""]
COUNT = 2


class Balances(Handler[int]):
    balances = Table(key=str, value=int)
    blobs = Table(key=bytes, value=int)
    numbers = Table(key=int, value=int)
    ids = Table(key=UUID, value=int)

    def on_record(self, record: Record[int]) -> None: ...


class Part:
    """One partition's tables; each `commit` is a transaction, which has committed the input below its number."""

    def __init__(self) -> None:
        self.tables = {name: table.fresh() for name, table in tables_and_outputs(Balances)[0].items()}
        self.state: Any = SimpleNamespace(version=0, tables=self.tables)
        self.n = 0
        self.paused: Command | None = None
        #: of a standby replica
        self.age: float | None = None

    def commit(self) -> None:
        for table in self.tables.values():
            table.freeze()
            table.commit()
        self.n += 1

    def pause(self) -> None:
        self.paused = Command(PAUSE, "1", "ops@desk", 7)

    def committed(self) -> Committed:
        age = self.age
        return Committed(self.state, lambda: self.record, None if age is None else lambda: age)

    @property
    def record(self) -> CommitRecord:
        return CommitRecord(
            n=self.n, attempt="", lineage="0123456789abcdef", service="s", partition=0, partitions=COUNT,
            positions={"s": self.n}, digest=b"", paused=self.paused,
        )  # fmt: skip


class Owners:
    """One instance that owns all partitions, and a client of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.partitions = COUNT
        self.parts = {number: Part() for number in range(COUNT)}
        service = Service("s", input="s", handler=Balances, settings=Settings())
        self.member: Any = None
        #: the partitions that are here and not live
        self.not_live: dict[int, PartitionStatus] = {}
        overview: Any = SimpleNamespace(
            committed=lambda _=None: {n: each.committed() for n, each in self.parts.items()},
            partitions=COUNT,
            members=SimpleNamespace(look=lambda _: (self.member,)),
            status=self.not_live.get,
        )
        self.overview = service.overview = overview
        monkeypatch.setattr(
            Service, "status", lambda _: {"partitions": [msgspec.to_builtins(each) for each in self.not_live.values()]}
        )
        self.asked: list[HttpRequest] = []
        #: what the server says instead of its answer
        self.said: Callable[[HttpRequest, HttpAnswer], HttpAnswer] = lambda _, answer: answer
        self.queries = queries = Queries(service)

        def answer(request: HttpRequest) -> HttpAnswer:
            self.asked.append(request)
            return self.said(request, answered(queries.answer, request))

        self.server = BoundedServer(("127.0.0.1", 0), answer)
        self.server.begin("owner")
        self.member = SimpleNamespace(url=f"http://127.0.0.1:{self.server.server_port}", partitions=tuple(range(COUNT)))
        self.members: tuple[Any, ...] = (self.member,)
        admin = SimpleNamespace(
            describe=lambda topics, _: dict.fromkeys(topics, SimpleNamespace(partitions=self.partitions)),
            describe_group=lambda *_: SimpleNamespace(members=self.members),
        )
        monkeypatch.setattr(asking, "Admin", lambda *_: admin)

    def url_of_another(self) -> str:
        """Let the group have another member, with the same server by another name; return host and port."""
        other = SimpleNamespace(url=self.member.url.replace("127.0.0.1", "localhost"), partitions=())
        self.members = (self.member, other)
        return str(other.url.removeprefix("http://"))

    def fill(self) -> None:
        for i, name in enumerate(NAMES):
            part = self.parts[murmur2(name.encode(), COUNT)]
            part.tables["balances"][name] = i
            part.tables["blobs"][name.encode() + b"\xff"] = i
        for part in self.parts.values():
            part.commit()


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> Iterator[Owners]:
    found = Owners(monkeypatch)
    yield found
    found.server.end()


Way = Callable[[Owners], Client]


def over_http(_: Owners) -> Client:
    return Client("s", Settings())


def in_this_process(owners: Owners) -> Client:
    return Client("s", Settings(), here=LocalReads(lambda: owners.overview, Names("s", "s")))


ways = pytest.mark.parametrize("way", [over_http, in_this_process])


@ways
def test_many_keys_are_read_of_all_partitions(owners: Owners, way: Way) -> None:
    owners.fill()
    wanted = {name: i for i, name in enumerate(NAMES)}
    with way(owners) as client:
        assert client.get_many_blocking("balances", [*NAMES, "nobody", "AT-1"], value=int, timeout=20) == wanted
        assert asyncio.run(client.get_many("balances", iter(NAMES), value=int, timeout=20)) == wanted
        assert client.get_many_blocking("balances", [], value=int) == {}
    assert all(request.path == "/state/balances" for request in owners.asked)
    assert len(owners.asked) == (0 if way is in_this_process else 4)


@ways
def test_a_range_has_the_rows_of_all_partitions_in_the_order_of_keys(owners: Owners, way: Way) -> None:
    owners.fill()

    def keys(page: RowPage[int]) -> list[str]:
        assert [row.partition for row in page.rows] == [murmur2(row.key.encode(), COUNT) for row in page.rows]
        assert [row.value for row in page.rows] == [NAMES.index(row.key) for row in page.rows]
        return [row.key for row in page.rows]

    german = sorted(name for name in NAMES if name.startswith("DE-"))
    with way(owners) as client:
        page = client.get_range_blocking("balances", value=int, prefix="DE-", timeout=20)
        assert (keys(page), page.truncated) == (german, False)
        assert parse(page.position) == {n: WatchedTo(1, "01234567") for n in range(COUNT)}
        first = asyncio.run(client.get_range("balances", value=int, prefix="DE-", limit=7, timeout=20))
        assert (keys(first), first.truncated) == (german[:7], True)
        rest = client.get_range_blocking("balances", value=int, start=german[7], end="DE-~", timeout=20)
        assert keys(rest) == german[7:]
        assert keys(client.get_range_blocking("balances", value=int, limit=1000, timeout=20)) == sorted(NAMES)
        assert client.get_range_blocking("balances", value=int, start="x", end="y", timeout=20).rows == []


def test_a_prefix_of_bytes_may_be_any_bytes(owners: Owners) -> None:
    for i, blob in enumerate([b"\x80\xff", b"\x80\xff\xff", b"\x81", b"\xff\xff", b"\xff"]):
        owners.parts[0].tables["blobs"][blob] = i
    owners.parts[0].commit()
    with over_http(owners) as client:
        for prefix, found in ((b"\x80\xff", [0, 1]), (b"\xff", [4, 3]), (b"\x80", [0, 1]), (b"", [0, 1, 2, 4, 3])):
            page = client.get_range_blocking("blobs", value=int, key=bytes, prefix=prefix, timeout=20)
            assert [row.value for row in page.rows] == found


@ways
def test_only_what_has_committed_is_listed(owners: Owners, way: Way) -> None:
    owners.fill()
    for part in owners.parts.values():
        for name in NAMES:
            part.tables["balances"][name] = -1
        part.tables["balances"]["new"] = -1
        part.tables["balances"].freeze()
    with way(owners) as client:
        values = client.get_many_blocking("balances", [*NAMES, "new"], value=int, timeout=20)
        assert values == {name: i for i, name in enumerate(NAMES)}
        listed = client.get_range_blocking("balances", value=int, limit=1000, timeout=20)
        assert {row.key: row.value for row in listed.rows} == values


def test_rows_include_the_records_of_the_receipts(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_queries, "_LONGEST", 0.02)
    owners.fill()
    receipts = [Receipt("s", 0, 0), Receipt("", 1, 3), Receipt("s", 1, 1)]
    with over_http(owners) as client:
        client.get_many_blocking("balances", NAMES, value=int, after=receipts[0], timeout=20)
        for read in (client.get_many_blocking, lambda table, _, **more: client.get_range_blocking(table, **more)):
            with pytest.raises(StateUnavailable, match=r"partition 1: .*503: .* has committed 1, and not yet 3"):
                read("balances", NAMES, value=int, after=receipts, timeout=0.3)
        for _ in range(3):
            owners.parts[1].commit()
        assert len(client.get_many_blocking("balances", NAMES, value=int, after=receipts, timeout=20)) == len(NAMES)
        with pytest.raises(UsageError, match="of another, not of s"):
            client.get_many_blocking("balances", NAMES, value=int, after=Receipt("another", 0, 0))
        with pytest.raises(UsageError, match="a page has 1 to 1000 rows"):
            client.get_range_blocking("balances", value=int, limit=1001)


def test_a_page_names_the_transaction_before_its_keys_were_read(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners.fill()

    def added_meanwhile(_: float) -> None:
        owners.parts[0].tables["balances"]["new"] = 7
        owners.parts[0].commit()

    monkeypatch.setattr(listing, "time", SimpleNamespace(sleep=added_meanwhile))
    page = rows_within(owners.parts[0].committed(), "balances", KeyBounds(), 1000)
    assert (page.since.n, page.commit_record.n) == (1, 2)
    assert "new" not in dict(page.rows), "a watch from transaction 1 on has it"


def test_a_partition_that_is_not_there_is_asked_again_and_named(owners: Owners) -> None:
    owners.fill()
    del owners.parts[1]
    with (
        over_http(owners) as client,
        pytest.raises(StateUnavailable, match=r"partition 1: not read within .* not there"),
    ):
        client.get_range_blocking("balances", value=int, timeout=0.5)


def not_live(phase: str, error: str | None = None, cause: str | None = None) -> PartitionStatus:
    nothing: dict[str, Any] = dict.fromkeys(each.name for each in msgspec.structs.fields(PartitionStatus))
    given = {"partition": 1, "phase": phase, "error": error, "cause": cause, "since": 1_750_000_000.0, "stuck": False}
    return PartitionStatus(**nothing | given)


IN_PARTITION_1 = next(name for name in NAMES if murmur2(name.encode(), COUNT) == 1)
Read = Callable[..., Any]
reads = pytest.mark.parametrize(
    "read",
    [
        lambda client, **given: client.get_blocking("balances", IN_PARTITION_1, value=int, **given),
        lambda client, **given: client.get_many_blocking("balances", NAMES, value=int, **given),
        lambda client, **given: client.get_range_blocking("balances", value=int, **given),
        lambda client, **given: asyncio.run(client.get("balances", IN_PARTITION_1, value=int, **given)),
        lambda client, **given: asyncio.run(client.get_many("balances", NAMES, value=int, **given)),
        lambda client, **given: asyncio.run(client.get_range("balances", value=int, **given)),
    ],
    ids=["get", "get_many", "get_range", "get in a coroutine", "get_many in one", "get_range in one"],
)
PAUSED = r"is paused by ops@desk.*Next: `statehold resume --name s --input s --partitions 1`"
#: longer than the test may take
FOR_LONG = 3_600.0


@pytest.mark.timeout(60)
@ways
@reads
@pytest.mark.parametrize("after", [None, Receipt("s", 1, 7)], ids=["", "after"])
def test_a_failed_partition_ends_a_read_at_once_with_its_cause(
    owners: Owners, way: Way, read: Read, after: Receipt | None
) -> None:
    owners.fill()
    del owners.parts[1]
    owners.not_live[1] = not_live("failed", "HandlerFailed", "s[1]@7: no")
    named = r"partition 1 has failed since 2025-06-15T.*HandlerFailed: s\[1\]@7: no.*Next: `statehold retry 1 --name s`"
    with way(owners) as client, pytest.raises(StateUnavailable, match=named):
        read(client, after=after, timeout=FOR_LONG)


@pytest.mark.timeout(60)
@ways
@reads
def test_a_paused_partition_ends_a_read_of_a_record_behind_it_at_once(owners: Owners, way: Way, read: Read) -> None:
    owners.fill()
    owners.parts[1].pause()
    with way(owners) as client:
        with pytest.raises(StateUnavailable, match=PAUSED):
            read(client, after=Receipt("s", 1, 7), timeout=FOR_LONG)
        assert read(client, after=Receipt("s", 1, 0), timeout=FOR_LONG) == read(client, timeout=FOR_LONG)


@ways
@reads
@pytest.mark.parametrize(
    "status", [not_live("restoring"), not_live("failed", "Fenced", "a newer owner")], ids=["restoring", "moving"]
)
def test_a_partition_that_moves_or_restores_is_waited_out(
    owners: Owners, way: Way, read: Read, status: PartitionStatus
) -> None:
    owners.fill()
    part = owners.parts.pop(1)
    owners.not_live[1] = status

    def live_after_it(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        if request.query["partition"] == "1":
            owners.parts[1] = part
        return answer

    owners.said = live_after_it
    with way(owners) as client:
        read(client, timeout=60)
    assert any(each.query["partition"] == "1" for each in owners.asked)


@pytest.mark.timeout(60)
@ways
@reads
def test_a_replica_may_answer_for_a_failed_partition(owners: Owners, way: Way, read: Read) -> None:
    owners.fill()
    part, replica = owners.parts.pop(1), owners.url_of_another()
    owners.not_live[1] = not_live("failed", "HandlerFailed", "s[1]@7: no")

    def of_the_replica(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
        if request.headers["host"] != replica:
            return answer
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(owners.parts, 1, part)
            return answered(owners.queries.answer, request)

    owners.said = of_the_replica
    with way(owners) as client:
        assert read(client, max_age=5, timeout=FOR_LONG)


@pytest.mark.parametrize("path", ["/state/balances/ann", "/state/balances"])
@pytest.mark.parametrize("paused", [False, True])
def test_the_answer_of_a_stopped_partition_says_so_at_once(owners: Owners, path: str, paused: bool) -> None:
    owners.fill()
    if paused:
        owners.parts[1].pause()
    else:
        del owners.parts[1]
        owners.not_live[1] = not_live("failed", "HandlerFailed", "no")
    answer = answered(owners.queries.answer, HttpRequest("GET", path, {"after": "1:7"}))
    body = msgspec.json.decode(answer.body)
    assert (answer.status, body["partition"], body["stopped"]) == (503, 1, True)
    assert body["phase"] == ("paused" if paused else "failed")


@pytest.mark.parametrize("path", ["/state/balances/ann", "/state/balances"])
def test_a_replica_that_was_paused_may_be_older_than_the_end_of_the_pause(
    owners: Owners, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_queries, "_LONGEST", 0.02)
    owners.fill()
    owners.parts[1].pause()
    owners.parts[1].age = 3.0
    answer = answered(owners.queries.answer, HttpRequest("GET", path, {"after": "1:7"}))
    body = msgspec.json.decode(answer.body)
    assert (answer.status, body["phase"], body.get("stopped")) == (503, "behind", None)


def test_of_several_processes_the_one_with_the_partition_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {1: as_json({"error": "elsewhere"}, 421), 2: as_json({"rows": [], "partitions": {"1": {}}})}
    processes: Any = SimpleNamespace(members=lambda: {number: SimpleNamespace(number=number) for number in answers})
    monkeypatch.setattr(supervisor, "gathered", lambda *_: answers)
    routes = FleetRoutes(processes, RequestGuard(Settings().ops, exposed=False))
    query = {"keys": "ann", "partition": "1", "after": "1:7"}
    assert routes.answer(HttpRequest("GET", "/state/balances", query)).status == 200
    with pytest.raises(Rejected, match=r"streams no changes. Next: use Client\.watch"):
        passed_on(processes.members()[1], HttpRequest("GET", "/watch/balances"))


def test_an_owner_bounds_what_it_is_asked(owners: Owners) -> None:
    owners.fill()
    with over_http(owners) as client:
        client.get_many_blocking("balances", ["x" * 300 + str(i) for i in range(300)], value=int, timeout=20)
        assert len(owners.asked) > 6
        with pytest.raises(StateUnavailable, match="400: 'ann' is no key of table 'numbers'"):
            client.get_many_blocking("numbers", ["ann"], value=int, timeout=20)
        with pytest.raises(StateUnavailable, match="what was read is no <class 'str'>"):
            client.get_many_blocking("balances", NAMES, value=str, timeout=20)
    queries = Queries(Service("s", input="s", handler=Balances, settings=Settings()))
    for table, field, text in (("balances", "keys", "a," * 101), ("numbers", "start", "x"), ("numbers", "keys", "1,")):
        assert answered(queries.answer, HttpRequest("GET", f"/state/{table}", {field: text})).status == 400


@ways
def test_keys_that_are_one_key_of_the_table_have_one_value(owners: Owners, way: Way) -> None:
    for number in (1, 2, 3):
        owners.parts[murmur2(str(number).encode(), COUNT)].tables["numbers"][number] = number * 10
    for part in owners.parts.values():
        part.commit()
    wanted: list[Any] = ["1", 1, 2, 3, "3", 4]
    with way(owners) as client:
        assert client.get_many_blocking("numbers", wanted, value=int, timeout=20) == {
            "1": 10, 1: 10, 2: 20, 3: 30, "3": 30,
        }  # fmt: skip


def as_an_older_release(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
    """Answer with the first rows, whatever was asked."""
    body = msgspec.json.decode(answer.body)
    if "rows" not in body:
        return answer
    partitions = {number: {"transaction": 1, "position": 1} for number in body["partitions"]}
    return as_json(
        {"rows": [{"key": "AT-0", "value": 0, "partition": 0}], "truncated": False, "partitions": partitions}
    )


def test_an_owner_of_an_older_release_gives_no_other_rows(owners: Owners) -> None:
    owners.fill()
    owners.said = as_an_older_release
    with over_http(owners) as client:
        for read in (client.get_many_blocking, lambda table, _, **more: client.get_range_blocking(table, **more)):
            with pytest.raises(StateUnavailable, match=r"the owner is of an older release, which does not read keys"):
                read("balances", ["DE-1", "DE-2"], value=int, timeout=0.3)

        def older_at_first(request: HttpRequest, answer: HttpAnswer) -> HttpAnswer:
            return as_an_older_release(request, answer) if len(owners.asked) <= asked + 2 else answer

        asked, owners.said = len(owners.asked), older_at_first
        assert client.get_many_blocking("balances", ["DE-1"], value=int, timeout=20) == {"DE-1": NAMES.index("DE-1")}


def paged(client: Client, limit: int) -> list[str]:
    """Read all keys, page after page."""
    keys: list[str] = []
    more = True
    while more:
        start = keys[-1] + "\0" if keys else None
        page = client.get_range_blocking("balances", value=int, start=start, limit=limit, timeout=20)
        assert page.rows or not page.truncated
        keys += [row.key for row in page.rows]
        more = page.truncated
    return keys


@ways
def test_pages_have_each_row_that_stays(owners: Owners, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.fill()
    gone: list[str] = []
    part = owners.parts[0]

    def deleted_meanwhile(table: Any, bounds: KeyBounds) -> Iterator[Any]:
        """List all keys; of one partition most of the first ones are deleted before they are read."""
        keys = list(keys_within(table, bounds))
        yield from keys
        if table is part.tables["balances"]:
            for name in sorted(keys)[:4]:
                del table[name]
                gone.append(name)
            part.commit()

    monkeypatch.setattr(listing, "keys_within", deleted_meanwhile)
    with way(owners) as client:
        found = paged(client, 5)
    assert len(gone) > 12
    assert found == sorted(set(found))
    assert set(found) >= set(NAMES) - set(gone)


def test_a_listing_whose_rows_all_leave_begins_again(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.fill()
    part = owners.parts[0]
    names = sorted(part.tables["balances"].stored)

    def deleted_meanwhile(_: float) -> None:
        if names[0] in part.tables["balances"].stored:
            for name in names[:5]:
                del part.tables["balances"][name]
            part.commit()

    monkeypatch.setattr(listing, "time", SimpleNamespace(sleep=deleted_meanwhile))
    page = rows_within(part.committed(), "balances", KeyBounds(), 5)
    assert [key for key, _ in page.rows] == names[5:10]
    assert (page.since.n, page.truncated) == (2, True)


def test_a_listing_that_never_has_rows_is_busy(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.fill()
    part = owners.parts[0]

    def deleted_meanwhile(_: float) -> None:
        del part.tables["balances"][min(part.tables["balances"].stored)]
        part.commit()

    monkeypatch.setattr(listing, "time", SimpleNamespace(sleep=deleted_meanwhile))
    with pytest.raises(Busy):
        rows_within(part.committed(), "balances", KeyBounds(), 1)


@ways
def test_a_page_has_a_bound_in_bytes(owners: Owners, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.fill()
    monkeypatch.setattr(listing, "_LARGEST", 12)
    with way(owners) as client:
        page = client.get_range_blocking("balances", value=int, limit=100, timeout=20)
        assert page.truncated
        assert 1 <= len(page.rows) <= 12 * COUNT
        assert paged(client, 100) == sorted(NAMES)
        monkeypatch.setattr(listing, "_LARGEST", 0)
        assert paged(client, 100) == sorted(NAMES), "one row has room always"


def test_an_answer_that_is_too_large_says_what_to_do(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    owners.fill()
    with over_http(owners) as client:
        monkeypatch.setattr(owner_reads, "_LARGEST", 500)
        with pytest.raises(StateUnavailable, match=r"more than 500 bytes. Next: ask for fewer rows"):
            client.get_range_blocking("balances", value=int, limit=100, timeout=20)
        assert len(client.get_range_blocking("balances", value=int, limit=2, timeout=20).rows) == 2


@ways
def test_bounds_mean_the_same_in_this_process_and_over_http(owners: Owners, way: Way) -> None:
    owners.fill()
    part = owners.parts[0].tables
    part["numbers"][10] = 1
    part["ids"][UUID(int=7)] = 7
    owners.parts[0].commit()
    with way(owners) as client:
        read: Any = client.get_range_blocking
        for prefix in ("0", "1"):
            with pytest.raises(StateUnavailable, match=r"for keys of str and bytes; those of"):
                read("numbers", value=int, prefix=prefix, timeout=20)
            with pytest.raises(UsageError, match=r"is for keys of str and bytes, and `key` is int"):
                read("numbers", value=int, key=int, prefix=prefix, timeout=20)
        for end in ("", b""):
            with pytest.raises(UsageError, match=r"no key is below it"):
                read("balances", value=int, end=end, timeout=20)
        texts, blobs = (read("balances", value=int, prefix=each, timeout=20) for each in ("DE-1", b"DE-1"))
        assert texts == blobs
        assert len(texts.rows) == 11
        assert read("balances", value=int, prefix=b"n\x7f", timeout=20).rows == []
        with pytest.raises(UsageError, match=r"is no text, and `key` is str"):
            read("balances", value=int, prefix=b"\xff", timeout=20)
        assert read("blobs", value=int, key=bytes, prefix="DE-1", timeout=20).rows[0].key == b"DE-10\xff"
        for kind, key in ((UUID, UUID(int=7)), (str, str(UUID(int=7)))):
            assert [row.key for row in read("ids", value=int, key=kind, timeout=20).rows] == [key]
        with pytest.raises(StateUnavailable, match=r"is no <class 'str'>"):
            read("numbers", value=int, timeout=20)


def test_a_client_that_lives_on_counts_partitions_again(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_reads, "_KEPT", 0.0)
    monkeypatch.setattr(owner_reads, "_ASK_AGAIN", 0.0)
    owners.fill()
    more = COUNT * 2
    with over_http(owners) as client:
        assert len(client.get_many_blocking("balances", NAMES, value=int, timeout=20)) == len(NAMES)
        for number in range(more):  # `statehold state repartition`
            owners.parts[number] = Part()
            for name in NAMES:
                if murmur2(name.encode(), more) == number:
                    owners.parts[number].tables["balances"][name] = NAMES.index(name)
            owners.parts[number].commit()
        owners.partitions, owners.member.partitions = more, tuple(range(more))
        for read in (
            lambda: client.get_blocking("balances", "DE-1", value=int, timeout=20),
            lambda: client.get_many_blocking("balances", NAMES, value=int, timeout=20),
            lambda: client.get_range_blocking("balances", value=int, limit=1000, timeout=20),
        ):
            client._asking._partitions = COUNT  # as before
            with pytest.raises(StateUnavailable, match=r"s has at least 4 partitions now, and had 2 .*Next: ask again"):
                read()
        assert client.get_many_blocking("balances", NAMES, value=int, timeout=20) == {n: i for i, n in enumerate(NAMES)}
        assert len(client.get_range_blocking("balances", value=int, limit=1000, timeout=20).rows) == len(NAMES)
        assert client.get_blocking("balances", "DE-1", value=int, timeout=20) == NAMES.index("DE-1")
