"""One task reads the state of a partition: deltas over the rows of a full snapshot. Needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.snapshot_records import PLACE, commit_record, header, manifest, part

from statehold import Table
from statehold.api.values.serde import Json, MsgPack
from statehold.errors import DigestMismatch, UsageError
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.records import Chunk, Header, Part
from statehold.snapshot.restore.discovery import LocatedCommitRecord, LocatedManifest
from statehold.snapshot.spark.export.columns import Columns, Untyped, arrow_schema, narrow_decoder, partition_column
from statehold.snapshot.spark.fold.newest import Keys, Newest
from statehold.snapshot.spark.fold.plan import FoldPlan
from statehold.snapshot.spark.fold.report import TaskReport
from statehold.snapshot.spark.io import overlay
from statehold.snapshot.spark.io.overlay import TablePart
from statehold.spark import state_rows
from statehold.spark.state_rows import StateTask, rows_of
from statehold.state import digest
from statehold.state.partition_table import Changes, PartitionTable

pack = msgspec.msgpack.encode
KEY = st.integers(0, 9) | st.text("ab", max_size=2) | st.tuples(st.integers(0, 1), st.just("a"))
#: each chunk and each delta is of one table
ENTRIES = st.tuples(st.sampled_from("tu"), st.lists(KEY, max_size=5, unique_by=pack))
State = dict[tuple[str, bytes], bytes]


class Stored:
    """The topics of one partition in lists: a full snapshot of transaction 5, and a delta in each one after it."""

    def __init__(self) -> None:
        self.state: State = {}
        self.log: list[bytes] = []
        self.chunks: list[bytes] = []
        self.n = 5

    def chunk(self, table: str, keys: Sequence[Any]) -> None:
        """Add the keys that no chunk has."""
        keys = [key for key in keys if (table, pack(key)) not in self.state]
        values = [b"%d" % len(self.chunks) for _ in keys]
        self.state |= {(table, pack(key)): value for key, value in zip(keys, values, strict=True)}
        self.row(table, keys, values)

    def row(self, table: str, keys: Sequence[Any], values: Sequence[bytes | None]) -> None:
        entry = records.entry(Changes(table, list(keys), list(values)))
        self.chunks.append(records.pack(Chunk("f", len(self.chunks), -1, entry)))

    def delta(self, table: str, keys: Sequence[Any], *, delete: bool) -> None:
        self.n += 1
        values = [None if delete else b"d%d" % self.n for _ in keys]
        for key, value in zip(keys, values, strict=True):
            self.state.pop((table, pack(key)), None)
            self.state |= {(table, pack(key)): value} if value is not None else {}
        self.add(header(self.n), part(self.n, changes=[Changes(table, list(keys), [*values])]))

    def add(self, *opening: Header | Part) -> None:
        """Add a transaction to the changelog."""
        self.log += [records.pack(each) for each in (*opening, commit_record(self.n, parts=1))]

    def plan(self, **of_manifest: Any) -> FoldPlan:
        wanted = sum(
            digest.seeded_digest([value], digest.packed_seeds(table, [key], text=True))
            for (table, key), value in self.state.items()
        )
        goal = commit_record(self.n, digest=digest.to_bytes(wanted), keys=len(self.state))
        sums = tuple(map(frame.body_checksum, self.chunks))
        base = LocatedManifest(len(self.chunks), manifest(commit_record(5), checksums=sums, **of_manifest))
        located = LocatedCommitRecord(len(self.log) - 1, goal)
        return FoldPlan(PLACE, goal, located, base, (base,), 0, len(self.log))

    def read(self, topic: str, partition: int, start: int, end: int, most: int = 0) -> Iterator[list[Any]]:
        held = self.log if topic == PLACE.names.changelog else self.chunks
        for offset in range(start, end):
            yield [SimpleNamespace(offset=lambda at=offset: at, value=lambda at=offset: held[at])]

    def close(self) -> None:
        """Nothing is open."""

    def reader(self) -> Any:
        return self


def found(stored: Stored, plan: FoldPlan, only: TablePart | None = None) -> State:
    reports: list[TaskReport] = []
    rows = [
        ((table, key if isinstance(key, bytes) else pack(key)), value)
        for table, keys, values in overlay.state_rows(stored.reader, plan, reports, only)
        for key, value in zip(keys, values, strict=True)
    ]
    assert len(rows) == len(dict(rows)), "each key once"
    assert [each.finding for each in reports] == [""] * len(reports)
    return dict(rows)


class Crowded(Newest):
    """Collects almost nothing."""

    def __init__(self) -> None:
        super().__init__(limit=60, most=60)


@pytest.mark.parametrize("newest", [Newest, Crowded])
@pytest.mark.parametrize("of_manifest", [{}, {"rows": 99, "shared": 1}])
@settings(deadline=None, max_examples=40)
@given(st.lists(ENTRIES, max_size=4), st.lists(st.tuples(ENTRIES, st.booleans()), max_size=6))
def test_deltas_over_a_full_snapshot_are_the_newest_value_of_each_key(
    newest: type[Newest], of_manifest: dict[str, int], chunks: list[Any], deltas: list[Any]
) -> None:
    stored = Stored()
    for table, keys in chunks:
        stored.chunk(table, keys)
    for (table, keys), delete in deltas:
        stored.delta(table, keys, delete=delete)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "Newest", newest)
        assert found(stored, stored.plan(**of_manifest)) == stored.state
        of_one = {place: value for place, value in stored.state.items() if place[0] == "t"}
        if newest is Newest:
            assert found(stored, stored.plan(**of_manifest), only=TablePart("t")) == of_one


@pytest.mark.parametrize("of_manifest", [{}, {"rows": 99, "shared": 1}])
@settings(deadline=None, max_examples=40)
@given(
    st.lists(ENTRIES, max_size=4),
    st.lists(st.tuples(ENTRIES, st.booleans()), max_size=6),
    st.sets(st.text("ab", max_size=2)),
)
def test_sought_keys_have_their_newest_value(
    of_manifest: dict[str, int], chunks: list[Any], deltas: list[Any], sought: set[str]
) -> None:
    stored = Stored()
    for table, some in chunks:
        stored.chunk(table, some)
    for (table, some), delete in deltas:
        stored.delta(table, some, delete=delete)
    part = TablePart("t", [key.encode() for key in sought])
    rows = found(stored, stored.plan(**of_manifest), only=part)
    places = [("t", pack(key)) for key in sought]
    assert [rows.get(place) for place in places] == [stored.state.get(place) for place in places]


def test_an_entry_without_a_sought_key_is_not_decoded() -> None:
    stored = Stored()
    for key in ("ann", "bob", "carol"):
        stored.chunk("t", [key])
    stored.delta("t", ["dave"], delete=False)
    rows = found(stored, stored.plan(), only=TablePart("t", [b"bob", b"dave"]))
    assert rows == {place: stored.state[place] for place in (("t", pack("bob")), ("t", pack("dave")))}


@pytest.mark.parametrize("mixed", ["chunk", "delta"])
def test_a_delta_replaces_a_string_among_keys_of_other_types(mixed: str) -> None:
    stored = Stored()
    stored.chunk("t", ["a", "b", 1] if mixed == "chunk" else ["a", "b"])
    stored.chunk("t", ["c"])
    stored.delta("t", ["a", "c"] if mixed == "chunk" else ["a", "c", 2], delete=False)
    assert found(stored, stored.plan()) == stored.state


def test_chunks_that_replace_rows_of_earlier_ones_are_merged() -> None:
    stored = Stored()
    stored.chunk("t", ["a", "b", "c"])
    stored.row("t", ["a", "b"], [b"new", None])
    stored.state = {("t", pack("a")): b"new", ("t", pack("c")): b"0"}
    assert found(stored, stored.plan(rows=5, shared=1)) == stored.state


def test_a_deleted_key_in_a_chunk_is_a_finding_where_no_chunk_replaces_rows() -> None:
    for key in ("a", 1):
        stored, reports = Stored(), list[TaskReport]()
        stored.row("t", [key], [None])
        assert list(overlay.state_rows(stored.reader, stored.plan(), reports)) == []
        assert "offset 0" in reports[-1].finding


class Value(msgspec.Struct, frozen=True):
    amount: int
    note: str = ""


TABLE: Table[str, Value] = Table(key=str, value=Value)
COLUMNS = Columns(PartitionTable(TABLE, "t"))
ARROW = arrow_schema(COLUMNS.schema)


def convert(keys: Keys, values: list[bytes]) -> pa.RecordBatch:
    return COLUMNS.batch(partition_column(0, len(keys)), keys, values, ARROW)


def typed(count: int, value: Any = None) -> Stored:
    """Rows in several chunks; one delta with the value of one key."""
    stored = Stored()
    for low in range(0, count, 7):
        keys = [f"k{i}" for i in range(low, min(low + 7, count))]
        values = [pack(Value(i)) for i in range(low, min(low + 7, count))]
        stored.row("t", keys, values)
        stored.state |= {("t", pack(key)): each for key, each in zip(keys, values, strict=True)}
    stored.n += 1
    data = pack(Value(4711) if value is None else value)
    stored.state["t", pack("k3")] = data
    stored.add(header(stored.n), part(stored.n, changes=[Changes("t", ["k3"], [data])]))
    return stored


@pytest.mark.parametrize(("together", "in_memory"), [(3, 0), (10, 100), (1000, 0), (1000, 10**6)])
def test_rows_that_wait_in_memory_and_in_a_file_leave_once(
    monkeypatch: pytest.MonkeyPatch, together: int, in_memory: int
) -> None:
    monkeypatch.setattr(state_rows, "BATCH", together)
    monkeypatch.setattr(state_rows, "_IN_MEMORY", in_memory)
    stored = typed(100)
    task = StateTask(stored.plan(), "t", text={"t": True})
    batches = list(rows_of(stored.reader, task, lambda keys: None, convert))
    rows = [(row["key"], row["amount"], row["note"]) for batch in batches for row in batch.to_pylist()]
    assert sorted(rows) == sorted((f"k{i}", 4711 if i == 3 else i, "") for i in range(100))


def test_strings_and_other_keys_wait_together() -> None:
    stored = Stored()
    stored.chunk("t", ["a", "b"])
    stored.chunk("t", [1, "c"])
    stored.chunk("t", ["d"])
    columns = Untyped("t")
    arrow = arrow_schema(columns.schema)

    def batch(keys: Keys, values: list[bytes]) -> pa.RecordBatch:
        return columns.batch(partition_column(0, len(keys)), keys, list(map(pack, values)), arrow)

    batches = rows_of(stored.reader, StateTask(stored.plan(), "t", verify=False), lambda keys: None, batch)
    assert sorted(row["key"] for each in batches for row in each.to_pylist()) == ['"a"', '"b"', '"c"', '"d"', "1"]


def test_a_value_that_does_not_fit_is_an_error_only_if_the_state_is_proven() -> None:
    stored = typed(10, value=["no Value"])
    plan = stored.plan()
    with pytest.raises(UsageError, match="table 't': convert a value to its column"):
        next(rows_of(stored.reader, StateTask(plan, "t", text={"t": True}), lambda keys: None, convert))
    wrong = plan.goal._replace(commit_record=msgspec.structs.replace(plan.goal.commit_record, digest=b"?" * 16))
    task = StateTask(msgspec.structs.replace(plan, goal=wrong), "t", text={"t": True})
    with pytest.raises(DigestMismatch):
        next(rows_of(stored.reader, task, lambda keys: None, convert))


class Inner(msgspec.Struct, frozen=True):
    deep: int


class Renamed(msgspec.Struct, frozen=True, rename="camel"):
    first_name: str
    inner: Inner
    tags: list[str] = msgspec.field(default_factory=list)
    limit: int = 7


@pytest.mark.parametrize("form", [MsgPack, Json])
def test_a_field_is_decoded_alone_with_its_name_type_and_default(form: Any) -> None:
    serde = form(Renamed)
    data = serde.encode(Renamed("ann", Inner(3)))
    for names in (["first_name"], ["inner", "limit"], ["tags"]):
        decode = narrow_decoder(serde, names)
        assert decode is not None
        assert msgspec.structs.asdict(decode(data)) == {name: getattr(serde.decode(data), name) for name in names}
    old = form(dict).encode({"firstName": "ann"})
    assert narrow_decoder(serde, ["limit"])(old).limit == 7  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError):
        narrow_decoder(serde, ["first_name"])(form(dict).encode({"firstName": 1}))  # type: ignore[misc]


class Checked(msgspec.Struct, frozen=True):
    amount: int

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("negative")


class Listed(msgspec.Struct, frozen=True, array_like=True):
    first: int
    second: int


class Tagged(msgspec.Struct, frozen=True, tag=True):
    first: int


class Exact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    first: int
    second: int


@pytest.mark.parametrize("kind", [Checked, Listed, Tagged, Exact, int, dict[str, int]])
def test_a_class_that_sees_the_whole_value_is_decoded_whole(kind: Any) -> None:
    assert narrow_decoder(MsgPack(kind), ["first"]) is None


def test_a_serde_of_the_users_own_decodes_the_whole_value() -> None:
    class Sealed(MsgPack):
        def __init__(self, key: int, kind: type) -> None:
            super().__init__(kind)
            opened = self.decode
            self.decode = lambda data: opened(bytes(each ^ key for each in data))

    assert narrow_decoder(Sealed(1, Renamed), ["first_name"]) is None


def test_only_the_asked_fields_of_a_value_are_decoded() -> None:
    data, keys = pack({"amount": "no number", "note": "n"}), ["a"]
    asked = pa.schema([field for field in ARROW if field.name in ("key", "note")])
    assert COLUMNS.batch(partition_column(0, 1), keys, [data], asked).to_pylist() == [{"key": "a", "note": "n"}]
    with pytest.raises(UsageError, match="amount"):
        COLUMNS.batch(partition_column(0, 1), keys, [data], ARROW)
