"""The engine: what raises is undone and named, batches and commands keep their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import pytest
from tests.support.messages import batch, message

from statehold import Handler, Output, Record, Table
from statehold.api.handler import EffectKey
from statehold.api.values.serde import Json, Serde, Text
from statehold.errors import HandlerFailed, UndecodableRecord, UsageError
from statehold.messages.command import COMMAND_HEADER, Command, header
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import BatchFailed, HandlingFailed


class Sums(Handler[int]):
    """Even numbers only."""

    sums = Table(key=str, value=int)
    out = Output("out", value=int)

    def on_record(self, record: Record[int]) -> None:
        self.sums["all"] = self.sums.get("all", 0) + record.value
        self.out.send(self.sums["all"])
        self.effect(noop, record.value)
        if record.value % 2:
            raise ValueError(f"odd {record.value}")


class Batches(Sums):
    def on_batch(self, records: Sequence[Record[int]]) -> None:
        for record in records:
            self.on_record(record)


class OnlyBatches(Handler[int]):
    seen = Table(key=str, value=tuple[int, ...])

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        self.seen["last"] = tuple(record.value for record in records)
        if 13 in self.seen["last"]:
            raise ValueError("thirteen")


def noop(key: EffectKey, *args: object) -> None:
    """An effect."""


def committed(engine: Engine) -> dict[Any, Any]:
    engine.state.commit(engine.freeze(), delta=True)
    return dict(next(iter(engine.state.tables.values())).items())


def test_a_batch_goes_record_by_record_and_leaves_outputs_effects_and_tables() -> None:
    engine = Engine(Sums, 3)
    engine.run(batch(2, 4))
    assert engine.handler.partition == 3
    assert [sent[1] for sent in engine.take_outputs()] == [b"2", b"6"]
    assert [effect.key for effect in engine.effects.take()] == [("input", 0, 2, 0), ("input", 0, 4, 0)]
    assert committed(engine) == {"all": 6}
    assert (engine.take_outputs(), engine.effects.take()) == ([], [])


def test_a_record_that_raises_is_named_and_the_rollback_leaves_nothing() -> None:
    engine = Engine(Sums, 0)
    with pytest.raises(HandlingFailed) as poison:
        engine.run(batch(2, 3, 4))
    error = poison.value.error
    assert isinstance(error, HandlerFailed)
    assert (poison.value.offset, error.position, isinstance(poison.value, BatchFailed)) == (3, 3, False)
    assert str(error).startswith("input[0]@3: the handler raised ValueError: odd 3.")
    assert isinstance(error.__cause__, ValueError)
    engine.rollback()
    assert (engine.outputs, engine.effects.noted, committed(engine)) == ([], [], {})
    engine.run(batch(2))
    assert [effect.key for effect in engine.effects.take()] == [("input", 0, 2, 0)]


@pytest.mark.parametrize("kind", [Sums, Batches])
def test_an_undecodable_record_is_named_after_those_before_it_were_handled(kind: Callable[[], Handler[int]]) -> None:
    engine = Engine(kind, 0)
    with pytest.raises(HandlingFailed) as poison:
        engine.run([*batch(2, 4), message(7, b"{"), *batch(8)])
    assert isinstance(poison.value.error, UndecodableRecord)
    assert (poison.value.offset, poison.value.error.position, isinstance(poison.value, BatchFailed)) == (7, 7, False)
    assert [sent[1] for sent in engine.take_outputs()] == [b"2", b"6"]


def test_a_record_of_the_wrong_type_is_undecodable_too() -> None:
    with pytest.raises(HandlingFailed, match=r"input\[0\]@1: ValueError: invalid literal"):
        Engine(Sums, 0).run([message(1, b'"text"')])


def test_a_tombstone_in_the_input_is_undecodable_not_a_crash() -> None:
    with pytest.raises(HandlingFailed) as poison:
        Engine(Sums, 0).run([message(1, None)])
    assert isinstance(poison.value.error, UndecodableRecord)


def test_a_batch_that_raises_is_to_blame_as_a_whole_and_then_one_by_one() -> None:
    engine = Engine(Batches, 0)
    with pytest.raises(HandlingFailed) as poison:
        engine.run(batch(2, 3, 4))
    assert (poison.value.offset, isinstance(poison.value, BatchFailed)) == (2, True)
    engine.rollback()
    with pytest.raises(HandlingFailed) as poison:
        engine.run(batch(2, 3), one_by_one=True)
    assert (poison.value.offset, isinstance(poison.value, BatchFailed)) == (3, False)


def test_without_on_record_a_batch_of_one_names_the_record() -> None:
    engine = Engine(OnlyBatches, 0)
    with pytest.raises(BatchFailed):
        engine.run(batch(12, 13))
    with pytest.raises(HandlingFailed) as poison:
        engine.run(batch(12, 13), one_by_one=True)
    assert (poison.value.offset, isinstance(poison.value, BatchFailed)) == (13, False)


class Commands(OnlyBatches):
    log = Output("log", value=str)

    def on_batch(self, records: Sequence[Record[int]]) -> None:
        self.log.send(" ".join(str(record.value) for record in records))

    def on_command(self, command: str, record: Record[bytes]) -> None:
        self.log.send(f"{command}:{record.value.decode()}@{record.offset}")
        if command == "fail":
            raise ValueError("on request")


def command(offset: int, text: str) -> Any:
    return message(offset, b"now", [("other", b""), (COMMAND_HEADER, text.encode())])


def test_commands_cut_the_batch_and_are_not_decoded() -> None:
    engine = Engine(Commands, 0)
    engine.run([*batch(1, 2), command(3, "close"), command(4, "open"), *batch(5)])
    assert [sent[1] for sent in engine.take_outputs()] == [b"1 2", b"close:now@3", b"open:now@4", b"5"]


def test_commands_are_noted_with_their_sender_and_statehold_s_own_do_not_reach_the_handler() -> None:
    engine = Engine(Commands, 0)
    engine.run([message(1, None, [header("close", "7", "ann")]), message(2, None, [header("take", "8")])])
    assert [sent[1] for sent in engine.take_outputs()] == [b"close:@1"]
    assert engine.take_commands() == [Command("close", "7", "ann", 1), Command("take", "8", "", 2)]
    assert engine.take_commands() == []


@pytest.mark.parametrize("data", [b"\xff", b"{", b"{}", b'{"name": 1}', b"", b"x" * 201])
def test_a_header_that_is_no_command_is_named_and_not_skipped(data: bytes) -> None:
    with pytest.raises(HandlingFailed, match=r"input\[0\]@2: BadCommand: header statehold-command") as poison:
        Engine(Commands, 0).run([*batch(1), message(2, None, [(COMMAND_HEADER, data)])])
    assert isinstance(poison.value.error, UndecodableRecord)


def test_a_command_that_raises_is_named() -> None:
    with pytest.raises(HandlingFailed, match=r"input\[0\]@2: the handler raised ValueError: on request"):
        Engine(Commands, 0).run([*batch(1), command(2, "fail"), *batch(3)])


def test_in_a_replay_nothing_leaves_but_tables_follow() -> None:
    engine = Engine(Sums, 0)
    engine.mute(replaying=True)
    assert engine.handler.replaying
    engine.run(batch(2, 4))
    assert (engine.take_outputs(), engine.effects.take()) == ([], [])
    engine.mute(replaying=False)
    assert committed(engine) == {"all": 6}
    engine.run(batch(6))
    assert len(engine.take_outputs()) == 1


class Effects(Handler[int]):
    def on_record(self, record: Record[int]) -> None:
        self.effect(noop, 1)
        self.effect(self.own, "two")

    def own(self, key: EffectKey, text: str) -> None:
        """A method is found again by its name."""

    def on_live(self) -> None:
        self.effect(noop)


def test_effects_of_a_record_are_numbered() -> None:
    engine = Engine(Effects, 0)
    engine.run(batch(1, 2))
    assert [(effect.offset, effect.index) for effect in engine.effects.noted] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [effect.function for effect in engine.effects.noted[:2]] == [f"{__name__}:noop", ".own"]


def test_effects_that_could_not_run_after_a_restart_are_rejected() -> None:
    engine = Engine(Effects, 0)
    with pytest.raises(UsageError, match="belongs to a record"):
        engine.handler.on_live()
    engine.run(batch(1))
    strangers: list[Callable[[Any], None]] = [lambda key: None, Engine(Effects, 0).handler.on_record]
    for function in strangers:
        with pytest.raises(UsageError, match="could not be found after a restart"):
            engine.handler.effect(function)
    with pytest.raises(UsageError, match="plain data"):
        engine.handler.effect(noop, object())


def test_a_hook_belongs_to_no_record_whatever_was_handled_before_it() -> None:
    engine = Engine(Effects, 0)
    engine.run(batch(1))
    engine.effects.take()
    with pytest.raises(UsageError, match="belongs to a record"):
        engine.call_hook("on_live")
    assert engine.effects.noted == []


def test_a_custom_partitioner_gets_the_key_and_the_partitions() -> None:
    class Routed(Handler[int]):
        out = Output("out", value=int, partitioner=lambda key, partitions: len(key or b"") % partitions)

        def on_record(self, record: Record[int]) -> None:
            self.out.send(record.value, key="seven77")
            self.out.send(record.value, partition=9)

    engine = Engine(Routed, 0, output_partitions=lambda topic: 5)
    engine.run(batch(1))
    assert [sent[3] for sent in engine.outputs] == [2, 9]


def test_instances_share_nothing() -> None:
    one, two = Engine(Sums, 0), Engine(Sums, 1)
    one.run(batch(2))
    assert (len(one.outputs), two.outputs, committed(two)) == (1, [], {})


def test_a_handler_without_a_type_takes_bytes_and_a_subclass_inherits_it() -> None:
    class Plain(Handler):  # type: ignore[type-arg]
        pass

    class Base(Handler[str]):
        seen = Table(key=int, value=str)

        def on_record(self, record: Record[str]) -> None:
            self.seen[record.offset] = record.value

    class Derived(Base):
        pass

    engine = Engine(Derived, 0)
    engine.run([message(1, b"text")])
    assert committed(engine) == {1: "text"}
    plain = Engine(Plain, 0)
    with pytest.raises(HandlingFailed, match="NotImplementedError"):
        plain.run([message(1, b"\xff")])


class Registry(Text):
    """A serde that depends on its topic."""

    made: ClassVar[list[str]] = []

    def for_topic(self, topic: str) -> Serde[Any]:
        self.made.append(topic)
        return Json(int)

    def encode(self, value: Any, /) -> bytes:
        raise AssertionError("the serde of the topic encodes")

    def decode(self, data: bytes, /) -> Any:
        raise AssertionError("the serde of the topic decodes")

    def check_input(self) -> None:
        """Nothing to check."""

    def check_output(self) -> None:
        """Nothing to check."""


class Registered(Handler[int]):
    sums = Table(key=str, value=int)
    out = Output("out", value=cast("type[int]", Registry()))

    def on_record(self, record: Record[int]) -> None:
        self.out.send(record.value)


def test_partitions_share_a_checked_declaration_but_neither_rows_nor_a_registrys_serde() -> None:
    Registry.made.clear()
    engines = [Engine(Registered, partition) for partition in (0, 1)]
    first, second = (engine.handler for engine in engines)
    assert isinstance(first, Registered)
    assert isinstance(second, Registered)
    first.sums["a"] = 1
    assert (list(first.sums), list(second.sums)) == (["a"], [])
    first.out.send(1)
    assert [len(engine.take_outputs()) for engine in engines] == [1, 0]
    assert Registry.made == ["out", "out"], "each partition has its own"
