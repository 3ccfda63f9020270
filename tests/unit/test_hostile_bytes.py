"""A writer of a topic can write any bytes: each decoder raises its declared errors and nothing else."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.snapshot_records import NAMES, PLACE, commit_record

from statehold.api.record import MemoryMessage
from statehold.bound.sink import SinkPosition
from statehold.messages import dead_letter
from statehold.messages.command import COMMAND_HEADER, BadCommand, command_of, header
from statehold.messages.retry_record import Retried
from statehold.ports import Asked, Noted
from statehold.snapshot.format import frame, records
from statehold.snapshot.format.blocks import block, blocks
from statehold.snapshot.format.frame import BadFrame
from statehold.snapshot.format.records import Chunk, EntryDecoder, Part
from statehold.snapshot.inspect import contents, typed
from statehold.snapshot.inspect.lines import Lines
from statehold.snapshot.spark.fold.newest import Newest
from statehold.worker.sinks import position

#: deeper than any interpreter's limit
DEEP: Final = 100_000
KINDS: Final = (b"H", b"A", b"P", b"M", b"C", b"F", b"?", b"\0")
GOLDEN: Final = Path(__file__).parents[1] / "golden"
#: of the changelog and snapshot topics in golden files; the first formats had other names
ENDINGS: Final = (".increment", ".full", ".changelog", ".snapshot")
#: the last two are the keys of windows and of joins
KEYS: Final = {"t": str, "n": int, "p": tuple[str, int], "w": tuple[str, int, int], "j": tuple[str, int, int, int]}
OPENINGS: Final = (b"\x91", b"\x81\xa1x", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x81\x91", b"\x81\x81")
WORDS: Final = ("topic", "partition", "offset", "timestamp", "why", "error", "text", "attempts", "ordered", "previous")
WORDS_OF_RETRIES: Final = ("topic", "offset", "timestamp", "error", "text", "attempts", "level", "due")

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner, max_size=6),
    max_leaves=20,
)
packed = plain.map(msgspec.msgpack.encode)
nested = st.builds(
    lambda before, opening, times, after: before + opening * times + after,
    st.sampled_from((b"", b"\x91", b"\x94\x01\xa1a\x01", b"\x94\xa1f\0\0", b"\x93\xa1t", b"\x81\xa6writer")),
    st.sampled_from(OPENINGS),
    st.integers(1, 3000),
    st.binary(max_size=20),
)
bodies = packed | nested | st.binary(max_size=300)
few = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read_frame(data: bytes) -> None:
    """As restores, tools and compactions read it."""
    records.foreign_writer(data)
    records.number_of(data)
    try:
        record = records.unpack(data)
    except BadFrame:
        return
    for raw in [record.entry] if isinstance(record, Chunk) else record.entries if isinstance(record, Part) else ():
        for read in (EntryDecoder(KEYS).decode, contents.decoded, Newest(1000).add):
            with suppress(BadFrame):
                read(raw)
        with suppress(BadFrame):
            contents.Contents().apply(contents.decoded(raw))


def show_frame(data: bytes) -> None:
    """As `cat` and `snapshot` show it: every finding is reported, none is raised."""
    message = MemoryMessage(PLACE.names.changelog, 0, 0, data)
    json.dumps(Lines(True, typed.Typed(), {}).line(message), default=str)


@given(st.sampled_from(KINDS), bodies)
@few
def test_a_frame_is_read_or_rejected(kind: bytes, body: bytes) -> None:
    data = frame.pack(kind, body)
    read_frame(data)
    show_frame(data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("before", [b"", b"\x94\x01\xa1a\x01", b"\x94\xa1f\0\0", b"\x81\xa6writer", b"\x93\xa1t"])
def test_a_frame_that_is_nested_deep_is_rejected(kind: bytes, opening: bytes, before: bytes) -> None:
    data = frame.pack(kind, before + opening * DEEP)
    with pytest.raises(BadFrame):
        records.unpack(data)
    assert records.foreign_writer(data) == ""
    show_frame(data)


@given(bodies)
@few
def test_an_entry_is_read_or_rejected(body: bytes) -> None:
    raw = msgspec.Raw(body)
    for read in (EntryDecoder(KEYS).decode, contents.decoded, Newest(1000).add):
        with suppress(BadFrame):
            read(raw)
    with suppress(BadFrame):
        contents.Contents().apply(contents.decoded(raw))


@pytest.mark.parametrize("opening", OPENINGS)
def test_an_entry_that_is_nested_deep_is_rejected(opening: bytes) -> None:
    for body in (opening * DEEP, b"\x93\xa1t" + opening * DEEP, b"\x93\xa1t\x91" + opening * 900 + b"\xc0"):
        for read in (EntryDecoder(KEYS).decode, contents.decoded, Newest(1000).add):
            with pytest.raises(BadFrame):
                read(msgspec.Raw(body))


@pytest.mark.parametrize("depth", [*range(150, 210, 10), *range(300, 340, 10), *range(400, 1010, 10), DEEP])
def test_a_value_that_is_nested_deep_is_shown(depth: int) -> None:
    """Whatever one step of showing it bears, the next one bears, too."""
    value = b"\x91" * depth + b"\xc0"
    for entry in ([b"k"], [value]), ([b"k"], [b"x"]):
        raw = msgspec.Raw(msgspec.msgpack.encode(["t", *entry]))
        show_frame(records.pack(Chunk("f", 0, -1, raw)))
    key = msgspec.Raw(b"\x93\xa1t\x91" + value + b"\x91\xc4\x01x")
    show_frame(records.pack(Chunk("f", 0, -1, key)))
    show_command(MemoryMessage("input", 0, 0, b"[" * depth + b"]" * depth, key=value))


@pytest.mark.parametrize("keys", [[{"a": 1}, {"a": 2}], ["a", 1], [1, "a"], [b"a", "a"], [None, "a"]])
def test_keys_that_no_table_has_are_rejected(keys: list[Any]) -> None:
    raw = msgspec.Raw(msgspec.msgpack.encode(["t", keys, [b"x", b"y"]]))
    with pytest.raises(BadFrame):
        contents.decoded(raw)


@given(st.binary(max_size=300) | plain.map(msgspec.json.encode) | st.text(max_size=300).map(str.encode))
@few
def test_a_command_is_read_or_rejected(data: bytes) -> None:
    message = MemoryMessage("input", 0, 0, b"", headers=[(COMMAND_HEADER, data)])
    with suppress(BadCommand):
        command_of(message)
    show_command(message)


def show_command(message: MemoryMessage) -> None:
    json.dumps(Lines(False, typed.Typed(), {}).line(message), default=str)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("times", [17, 500, DEEP])
def test_a_command_that_is_nested_deep_is_rejected(opening: bytes, times: int) -> None:
    """Also one that is just within the limit of some callers: a replay calls from another depth than the live loop."""
    closing = {b"[": b"]", b'{"a":': b"}", b'[{"a":': b"}]"}[opening]
    data = b'{"name":"x","more":' + opening * times + b"1" + closing * times + b"}"
    message = MemoryMessage("input", 0, 0, b"", headers=[(COMMAND_HEADER, data)])
    with pytest.raises(BadCommand):
        command_of(message)
    show_command(message)


def test_a_command_of_the_longest_fields_is_read() -> None:
    name = '\U0001f600{[\\"' * 40
    message = MemoryMessage("input", 0, 7, b"", headers=[header(name, name, name)])
    found = command_of(message)
    assert found is not None
    assert found.name == found.id == found.issuer == name


def test_a_command_without_end_is_rejected() -> None:
    message = MemoryMessage(
        "input", 0, 0, b"", headers=[(COMMAND_HEADER, b'{"name":"x","more":"' + b"y" * 20_000 + b'"}')]
    )
    with pytest.raises(BadCommand, match="more than 16384"):
        command_of(message)


@given(bodies)
@few
def test_a_request_for_a_dead_letter_is_read_or_rejected(body: bytes) -> None:
    message = MemoryMessage("control", 0, 0, body, headers=[header(dead_letter.REPLAY)])
    with suppress(BadCommand):
        Asked.by(message)


def test_a_request_that_names_no_dead_letter_is_rejected_where_it_arrives() -> None:
    with pytest.raises(BadCommand, match="names no dead letter"):
        Asked.by(MemoryMessage("control", 0, 0, b"\x91" * DEEP, headers=[header(dead_letter.DISCARD)]))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([dead_letter.PREFIX + word for word in WORDS])
            | st.sampled_from(["statehold-retry-" + word for word in WORDS_OF_RETRIES])
            | st.just(COMMAND_HEADER),
            st.none() | st.binary(max_size=30) | st.integers().map(lambda number: b"%d" % number),
        ),
        max_size=24,
    )
)
@few
def test_headers_of_dead_letters_and_retries_are_read_or_foreign(headers: list[tuple[str, Any]]) -> None:
    message = MemoryMessage("dead", 0, 0, b"", headers=headers)
    dead_letter.read(message)
    Retried.by(message, ["input"])


@pytest.mark.parametrize("number", [b"x", b"", b"9" * 5000, b"1e3", "٣".encode(), b"9" * 19, b"1_0", b" 1"])
@pytest.mark.parametrize("word", sorted({*WORDS, *WORDS_OF_RETRIES} - {"topic", "why", "error", "text", "ordered"}))
def test_a_header_that_is_no_number_is_foreign(word: str, number: bytes) -> None:
    for prefix, words in ((dead_letter.PREFIX, WORDS), ("statehold-retry-", WORDS_OF_RETRIES)):
        headers = [(prefix + each, number if each == word else b"1") for each in words]
        message = MemoryMessage("dead", 0, 0, b"", headers=headers)
        if word in words:
            assert (dead_letter.read(message) or Retried.by(message, ["input"])) is None


@given(st.text(max_size=40) | st.from_regex(r"[a-z]{1,4} n=[0-9]{1,9}") | st.just("a n=" + "9" * 5000))
@few
def test_the_metadata_of_a_group_offset_is_read(text: str) -> None:
    Noted.of(text)


@given(bodies | nested | st.binary(max_size=40))
@few
def test_a_request_to_pass_over_a_record_is_read_or_rejected(body: bytes) -> None:
    with suppress(BadCommand):
        Asked.by(MemoryMessage("control", 0, 0, body, headers=[header(dead_letter.ADD)]))


@given(bodies)
@few
def test_a_note_of_a_sinks_position_is_read_or_rejected(body: bytes) -> None:
    with suppress(position.Disagreement):
        position.ahead_of(SinkPosition(1, 5, body), commit_record(1), NAMES)


@pytest.mark.parametrize("inputs", [(0, 0), (0, 0, 0)])
def test_a_note_of_another_number_of_inputs_is_rejected(inputs: tuple[int, ...]) -> None:
    """Its order would name an input that the partition does not read."""
    note = position.Note("l", b"", inputs=inputs, order=bytes((len(inputs) - 1, 1)))
    with pytest.raises(position.Disagreement, match=f"has {len(inputs)} inputs, the service has 1"):
        position.ahead_of(SinkPosition(1, 5, position.encode(note)), commit_record(1), NAMES)


@given(st.lists(st.integers(-(2**63), 2**63), max_size=4), st.binary(max_size=20))
@few
def test_the_order_in_a_note_of_a_sinks_position_is_read_or_rejected(inputs: list[int], order: bytes) -> None:
    note = position.Note("l", b"", inputs=tuple(inputs), order=order)
    with suppress(position.Disagreement):
        position.ahead_of(SinkPosition(1, 5, position.encode(note)), commit_record(1), NAMES)


@given(st.binary(max_size=200))
@few
def test_blocks_are_read_or_rejected(data: bytes) -> None:
    with suppress(BadFrame):
        list(blocks(io.BytesIO(data), len(data)))


def test_a_block_may_hold_the_largest_frame() -> None:
    """What does not compress is as long in a store as in Kafka, head included."""
    data = bytes(65 * 1024 * 1024)
    assert list(blocks(io.BytesIO(block(data)), len(data) + 4)) == [data]


def golden() -> list[bytes]:
    """The frames of every golden file."""
    found = []
    for path in sorted(GOLDEN.glob("format-*/*.jsonl")):
        rows = map(json.loads, path.read_text().splitlines())
        frames = [base64.b64decode(row["value"]) for row in rows if row["topic"].endswith(ENDINGS)]
        assert len(frames) > 100, path
        found += frames
    return found


def mutate(bodies: list[tuple[bytes, bytes]], chance: random.Random) -> bytes:
    """A frame with a checksum that fits, so that what is in it is decoded; now and then one that does not fit."""
    kind, body = chance.choice(bodies)
    data = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        how = chance.randrange(6)
        if how == 0 and data:
            data[at % len(data)] = chance.randrange(256)
        elif how == 1:
            del data[at : at + chance.randint(1, 8)]
        elif how == 2:
            data[at:at] = chance.randbytes(chance.randint(1, 8))
        elif how == 3:
            other = chance.choice(bodies)[1]
            start = chance.randrange(len(other) + 1)
            data[at:at] = other[start : start + chance.randint(1, 40)]
        elif how == 4:
            data[at:at] = chance.choice(OPENINGS) * chance.choice((1, 40, 1500))
        elif data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
    if chance.random() < 0.1:
        kind = chance.choice(KINDS)
    made = bytearray(frame.pack(kind, bytes(data), chance.randint(1, 3)))
    if chance.random() < 0.1:
        made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
    return bytes(made)


def fuzz(times: int, seed: int, read: Callable[[bytes], None]) -> None:
    chance, bodies = random.Random(seed), [frame.unpack(data) for data in golden()]
    for _ in range(times):
        data = mutate(bodies, chance)
        try:
            read(data)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for {base64.b64encode(data).decode()}") from error


def read_and_show(data: bytes) -> None:
    read_frame(data)
    show_frame(data)


def test_mutated_golden_frames_are_read_or_rejected() -> None:
    fuzz(3000, 1, read_and_show)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_million_mutated_golden_frames_are_read_or_rejected() -> None:
    fuzz(1_000_000, 2, read_and_show)


# From a deep stack: less of the interpreter's limit is left, so less nesting is too much


def at_depth(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else at_depth(depth - 1, call)


def deepest(call: Callable[[], Any]) -> int:
    """The deepest stack from which the call works."""
    low, high = 0, 1000
    while low < high:
        middle = (low + high + 1) // 2
        try:
            at_depth(middle, call)
            low = middle
        except RecursionError:
            high = middle - 1
    return low


def json_of(depth: int) -> bytes:
    return b'{"name":"x","more":' + b"[" * depth + b"]" * depth + b"}"


def frame_of(kind: bytes, before: bytes) -> Callable[[int], bytes]:
    return lambda depth: frame.pack(kind, before + b"\x91" * depth + b"\xc0")


def request_at(name: str) -> Callable[[bytes], object]:
    return lambda data: Asked.by(MemoryMessage("control", 0, 0, data, headers=[header(name)]))


def command_at(data: bytes) -> object:
    return command_of(MemoryMessage("input", 0, 0, b"", headers=[(COMMAND_HEADER, data)]))


def dead_letter_at(data: bytes) -> object:
    named = [(dead_letter.PREFIX + word, b"1") for word in WORDS if word != "topic"]
    return dead_letter.read(MemoryMessage("dead", 0, 0, b"", headers=[(COMMAND_HEADER, data), *named]))


def entry_at(read: Callable[[Any], Any]) -> Callable[[bytes], object]:
    return lambda data: read(msgspec.Raw(data))


FIELDS: Final = b"".join(map(msgspec.msgpack.encode, (0, 0, None, None, [], False, -1, "why")))
ADD_FIELDS: Final = b"".join(map(msgspec.msgpack.encode, (0, 0, False, "why")))
#: of each decoder: the call, how its input is nested, and the errors that it declares
DECODERS: Final[dict[str, tuple[Callable[[bytes], Any], Callable[[int], bytes], tuple[type[Exception], ...]]]] = {
    "command": (command_at, json_of, (BadCommand,)),
    "command of a trace": (dead_letter_at, json_of, ()),
    "redrive": (
        request_at(dead_letter.REPLAY),
        lambda depth: b"\x99" + FIELDS + b"\x91" * depth + b"\xc0",
        (BadCommand,),
    ),
    "add": (
        request_at(dead_letter.ADD),
        lambda depth: b"\x95" + ADD_FIELDS + b"\x91" * depth + b"\xc0",
        (BadCommand,),
    ),
    "commit record": (records.unpack, frame_of(b"M", b"\x81\xa1x"), (BadFrame,)),
    "manifest": (records.unpack, frame_of(b"F", b"\x81\xa1x"), (BadFrame,)),
    "chunk": (records.unpack, frame_of(b"C", b"\x94\xa1f\0\0"), (BadFrame,)),
    "part": (records.unpack, frame_of(b"P", b"\x94\x01\xa1a\x01"), (BadFrame,)),
    "header": (records.unpack, frame_of(b"H", b""), (BadFrame,)),
    "writer": (records.foreign_writer, frame_of(b"M", b"\x81\xa6writer"), ()),
    "number": (records.number_of, frame_of(b"M", b"\x81\xa1n"), ()),
    "entry": (entry_at(EntryDecoder(KEYS).decode), lambda depth: b"\x93\xa1t" + b"\x91" * depth + b"\xc0", (BadFrame,)),
    "entry of no type": (entry_at(contents.decoded), lambda depth: b"\x93\xa1t" + b"\x91" * depth, (BadFrame,)),
    "entry of a fold": (entry_at(Newest(1).add), lambda depth: b"\x93\xa1t" + b"\x91" * depth, (BadFrame,)),
    "note of a sink": (
        lambda data: position.ahead_of(SinkPosition(1, 5, data), commit_record(1), NAMES),
        lambda depth: b"\x95\xa1l\xc4\0\x90\x90" + b"\x91" * depth + b"\xc0",
        (position.Disagreement,),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_no_stack_is_so_deep_that_another_error_comes_out(name: str) -> None:
    read, nested_by, declared = DECODERS[name]

    def call(depth: int) -> None:
        with suppress(*declared):
            read(nested_by(depth))

    floor = deepest(lambda: call(1)) - 12  # the text of an error takes some calls, too
    assert floor > 700
    for stack in (0, 100, floor // 2, *range(floor - 60, floor, 7)):
        for depth in (15, 100, 400, 900, DEEP, *range(max(1, 960 - stack), 1000 - stack, 3)):
            try:
                at_depth(stack, lambda depth=depth: call(depth))  # type: ignore[misc]
            except RecursionError as error:
                raise AssertionError(f"nested {depth} deep, from a stack of {stack}") from error
