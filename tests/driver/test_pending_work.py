"""Work that waits while a service gets another release: each row of the table in docs/how-to/state/upgrades.md."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec
import pytest
from tests.support import inside
from tests.support.handlers import Interval, events
from tests.support.rehearsing import rehearsed
from tests.support.shadowing import DriverShadow

from statehold import Handler, JoinBuffer, Output, Record, Table, Timer, Tumbling, dead_letter, retry, retry_later
from statehold.admin.repair.effects import DropEffects
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.api.handler import EffectKey
from statehold.api.sink import Sink
from statehold.bound.handler import new_state
from statehold.errors import (
    HandlerFailed,
    NonDeterministicReplay,
    TableTypeChanged,
    UndecodableRecord,
    UnknownEffect,
    UnknownSchema,
)
from statehold.messages.dead_letter import DeadLetter
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import Effect
from statehold.snapshot.state_edits import Edits
from statehold.snapshot.state_edits import drop as drop_keys
from statehold.testing import Driver
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.pending_effects import by_function, obstacle

HERE = sys.modules[__name__]
SECOND = 1000


class Order(msgspec.Struct, frozen=True):
    cents: int


class NewOrder(msgspec.Struct, frozen=True):
    minor: int


class Noting(Handler[str]):
    """Has a table and requests nothing."""

    seen = Table(key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.seen[record.value] = record.offset


# Effects


def post(key: EffectKey, body: str) -> None:
    """An external system."""


class Posting(Noting):
    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        self.effect(post, record.value)
        self.effect(self.mail, record.value, len(record.value))

    def mail(self, key: EffectKey, body: str, size: int) -> None:
        """Another one."""


class Renamed(Noting):
    """Another release, with other names."""

    mailed: ClassVar[list[tuple[EffectKey, str, int]]] = []

    def send_mail(self, key: EffectKey, body: str, size: int) -> None:
        self.mailed.append((key, body, size))

    renamed_effects: ClassVar = {f"{__name__}:post": lambda key, body: posted.append((key, body)), ".mail": send_mail}


class Adapted(Posting):
    """Another release: `post` takes one argument more, and the old calls go to another function."""

    renamed_effects: ClassVar = {f"{__name__}:post": lambda key, body: posted.append((key, body))}


posted: list[tuple[EffectKey, str]] = []


def pending(kind: type[Handler[Any]] = Posting) -> Driver:
    """A service whose calls have all failed so far."""
    driver = Driver(kind, run_effects=True)
    driver.fail_effects(ConnectionError("down"))
    driver.feed_all(["a", "bb"])
    driver.commit()
    assert len(driver.pending_effects) == 4
    return driver


def test_an_effect_whose_function_is_gone_is_found_before_a_record_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pending()
    before = driver.pending_effects
    with pytest.raises(UnknownEffect) as failed:
        driver.upgrade(Noting)
    text = str(failed.value)
    assert text.startswith(
        "input[0]@2: 2 of 4 pending effects cannot be called: .mail (2). The first one, '.mail' of input[0]@0: there "
        "is no such function: 'Noting' object has no attribute 'mail'. driver wrote the last commit record."
    )
    assert "Noting.renamed_effects = {'.mail': FUNCTION}" in text
    assert "`statehold repair drop-effects MODULE:SERVICE --why TEXT --dry-run`" in text
    with monkeypatch.context() as patched:
        patched.delattr(HERE, "post")
        with pytest.raises(UnknownEffect, match=rf"{__name__}:post \(2\)\. .* has no attribute 'post'"):
            driver.upgrade(Posting)
    driver.upgrade(Posting)
    assert driver.pending_effects == before
    driver.fail_effects(None)
    driver.advance(5)
    assert [call.arguments for call in driver.effects] == [("a",), ("a", 1), ("bb",), ("bb", 2)]


@pytest.mark.parametrize("interval", [5.0, "off"])
def test_a_gap_is_not_handled_again_by_code_that_cannot_call_the_effects(interval: Interval) -> None:
    """The records of the gap would be handled by other code, and the partition not live all the same."""
    driver = Driver(Posting, run_effects=True, delta_interval=interval)
    driver.fail_effects(ConnectionError("down"))
    driver.feed("a")
    driver.commit()
    handled: list[str] = []

    class Watched(Noting):
        def on_record(self, record: Record[str]) -> None:
            handled.append(record.value)

    with pytest.raises(UnknownEffect):
        driver.upgrade(Watched, crash=True)
    assert handled == []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda key, body, more: None,
            r"it takes \(key, body, more\), and would be called with the key and 1 argument\.",
        ),
        (lambda key: None, r"it takes \(key\), and would be called with the key and 1 argument\."),
        (lambda key, *, body: None, r"it takes \(key, \*, body\), and would"),
        ("no function", "TypeError: 'no function' is not a callable object"),
    ],
)
def test_an_effect_whose_function_takes_other_arguments_is_found(
    function: object, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pending()
    monkeypatch.setattr(HERE, "post", function)
    with pytest.raises(UnknownEffect, match=text):
        driver.upgrade(Posting)


def test_an_effect_whose_module_cannot_be_imported_or_whose_arguments_are_damaged_is_found() -> None:
    handler, coordinates = Posting(), ("input", 0, 0, 0)
    gone = Effect("tests.driver.no_such_module:post", *coordinates, msgspec.msgpack.encode(["a"]))
    foreign = Effect("no_such_package:post", *coordinates, msgspec.msgpack.encode(["a"]))
    damaged = Effect(f"{__name__}:post", *coordinates, b"\xc1")
    found = [obstacle(handler, each) for each in (gone, foreign, damaged)]
    assert found[0] == "ModuleNotFoundError: No module named 'tests.driver.no_such_module'"
    assert "is not imported" in found[1]
    assert found[2].startswith("its arguments cannot be read: ")


def test_more_parameters_with_defaults_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pending()
    calls: list[object] = []
    monkeypatch.setattr(HERE, "post", lambda key, body, more=0, *others, named=1: calls.append(body))
    driver.upgrade(Posting)
    driver.fail_effects(None)
    driver.advance(5)
    assert calls == ["a", "bb"]


def test_a_renamed_effect_goes_to_the_function_that_the_handler_names(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pending()
    monkeypatch.delattr(HERE, "post")
    posted.clear()
    Renamed.mailed.clear()
    driver.upgrade(Renamed)
    driver.fail_effects(None)
    driver.advance(5)
    keys = [("input", 0, offset, 0) for offset in (0, 1)]
    assert posted == [(keys[0], "a"), (keys[1], "bb")]
    assert Renamed.mailed == [((*keys[0][:3], 1), "a", 1), ((*keys[1][:3], 1), "bb", 2)]
    assert driver.pending_effects == []


def test_a_method_that_a_subclass_overrides_takes_the_calls_as_the_subclass_does() -> None:
    class Overriding(Renamed):
        taken: ClassVar[list[str]] = []

        def send_mail(self, key: EffectKey, body: str, size: int) -> None:
            self.taken.append(body)

    driver = pending()
    driver.upgrade(Overriding)
    driver.fail_effects(None)
    driver.advance(5)
    assert Overriding.taken == ["a", "bb"]


def test_an_old_name_takes_no_new_effects() -> None:
    """A call of the new function would go to the one for the old calls."""
    driver = Driver(Adapted)
    with pytest.raises(HandlerFailed, match=r"Adapted.renamed_effects gives the pending calls of '.*:post' to another"):
        driver.feed("a")


def test_an_effect_whose_parameter_has_another_type_gets_the_stored_value(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pending()
    calls: list[object] = []

    def changed(key: EffectKey, body: int) -> None:
        calls.append(body)

    monkeypatch.setattr(HERE, "post", changed)
    driver.upgrade(Posting)
    driver.fail_effects(None)
    driver.advance(5)
    assert calls == ["a", "bb"]


def test_a_rehearsal_finds_pending_effects_that_the_new_code_cannot_call() -> None:
    driver = pending()
    found = rehearsed(driver, Noting)
    assert found.verdict == "unreadable"
    assert found.unreadable[0].startswith("UnknownEffect: 2 of 4 pending effects cannot be called: .mail (2). ")
    assert rehearsed(driver, Renamed).unreadable == []


def test_a_shadow_finds_them_too() -> None:
    driver = pending()
    found = DriverShadow(driver, Noting).look()
    assert (found.phase, found.records) == ("unreadable", 0)
    assert found.unreadable[0].startswith("UnknownEffect: 2 of 4 pending effects cannot be called: .mail (2). ")
    assert DriverShadow(driver, Renamed).look().phase == "following"


def drop(driver: Driver, kind: type[Handler[Any]], *functions: str) -> Any:
    """What `statehold repair drop-effects` decides about the partition."""
    record = driver.commit_record()
    engine = Engine(kind, 0)
    stopped = SimpleNamespace(find=lambda place: LastState(record, engine.state), engine=lambda partition: engine)
    return DropEffects(functions).examine(cast("StoppedService", stopped), Place(driver.names, 0, 1, {}))


def test_the_repair_drops_what_cannot_be_called_or_what_is_named() -> None:
    driver = pending()
    old = driver.commit_record()
    dropped = drop(driver, Noting)
    assert [each.function for each in dropped.like.effects] == [f"{__name__}:post"] * 2
    assert dropped.finding == "2 of 4 pending effects cannot be called: .mail (2)"
    assert dropped.consequence == "their calls are not made: those of the records input[0]@0 to 1"
    assert (dropped.old, dict(dropped.inputs)) == (old, {"input": 2})
    named = drop(driver, Posting, f"{__name__}:post")
    assert [each.function for each in named.like.effects] == [".mail"] * 2
    assert named.finding == f"2 of 4 pending effects are of the named functions: {__name__}:post (2)"
    assert (drop(driver, Posting).finding, drop(driver, Posting).like) == ("", old)


def test_a_text_names_the_functions_with_most_calls() -> None:
    effects = [Effect(f"f{n}" + "x" * 200, "input", 0, n, 0, b"") for n in range(8) for _ in range(n)]
    text = by_function(effects)
    assert text.startswith(f"f7{'x' * 98} (7), f6")
    assert text.endswith(" and 2 further functions")


# Timers


class Scheduling(Noting):
    def on_record(self, record: Record[str]) -> None:
        super().on_record(record)
        if record.value == "schedule":
            self.schedule(record.timestamp + 5 * SECOND, {"cents": 5}, id="t")

    def on_timer(self, timer: Timer) -> None:
        self.out.send(str(timer.payload["cents"]))


class AnotherPayload(Scheduling):
    on_failure: ClassVar = {Exception: retry(2, seconds=0.01).then(dead_letter())}

    def on_timer(self, timer: Timer) -> None:
        self.out.send(str(timer.payload["minor"]))


def test_a_timer_of_another_payload_fails_the_partition_and_no_record_goes_in_its_place() -> None:
    driver = Driver(Scheduling)
    driver.feed("schedule", key="k", timestamp=1 * SECOND)
    driver.upgrade(AnotherPayload)
    with pytest.raises(
        HandlerFailed, match=r"input\[0\]@1: .*KeyError: 'minor', in on_timer of 't', due 1970-01-01T00:00:06"
    ):
        driver.feed("later", key="k", timestamp=60 * SECOND)
    assert driver.dead_letters() == []
    assert len(events(driver, "record_retried")) == 2
    driver.dead_letter(1, why="it stands in the way")
    with pytest.raises(HandlerFailed, match="KeyError: 'minor'"):
        driver.restore()
    (command,) = events(driver, "command_rejected")
    assert "the record is not at fault: on_timer of 't'" in command["cause"]
    driver.upgrade(Scheduling)
    assert (driver.outputs("out"), driver.table("seen")) == (["5"], {"schedule": 0, "later": 1})


class RetriesLater(AnotherPayload):
    on_failure: ClassVar = {Exception: retry_later(5, any_order=True)}


def test_a_timer_of_another_payload_sends_no_record_to_a_retry_topic() -> None:
    driver = Driver(Scheduling)
    driver.feed("schedule", key="k", timestamp=1 * SECOND)
    driver.upgrade(RetriesLater)
    with pytest.raises(HandlerFailed, match="in on_timer of 't'"):
        driver.feed("later", key="k", timestamp=60 * SECOND)


@pytest.mark.parametrize("fired", [False, True])
def test_a_release_without_on_timer_is_rejected_while_the_state_has_a_time(fired: bool) -> None:
    driver = Driver(Scheduling)
    driver.feed("schedule", timestamp=1 * SECOND)
    if fired:
        driver.feed("later", timestamp=60 * SECOND)
        driver.take_full()
    why = "'statehold.clock', .* it has a time" if fired else "'statehold.timers', .* it has timers"
    with pytest.raises(UnknownSchema, match=f"{why}, and this code no .*on_timer"):
        driver.upgrade(Noting)
    driver.upgrade(Scheduling)
    driver.feed("later", timestamp=70 * SECOND)
    assert driver.outputs("out") == ["5"]


def test_timers_and_the_time_can_be_dropped_while_the_code_has_them() -> None:
    """The edit of `statehold state migrate --drop`."""
    driver = Driver(Scheduling)
    driver.feed("schedule", timestamp=1 * SECOND)
    driver.commit()
    old, new = inside.lanes(driver)[0].engine().state, new_state(Scheduling, traced=False, track_delta=False)
    dropped = dict.fromkeys(("statehold.timers", "statehold.clock"), drop_keys)
    Edits(dropped, [], old.tables).apply(0, old, new)
    assert new.used == ["seen"]


# Windows


class Counting(Handler[str]):
    sums = Tumbling(10, key=str, value=int)
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.sums.update(record, record.value, lambda count: (count or 0) + 1)

    def on_window(self, name: str, key: str, start: int, end: int, value: int) -> None:
        self.out.send(f"{key} {start} {end} {value}")


class CountingLonger(Counting):
    sums = Tumbling(20, key=str, value=int)


def test_a_window_closes_with_the_size_that_it_was_opened_with() -> None:
    driver = Driver(Counting)
    driver.feed("a", timestamp=1 * SECOND)
    driver.upgrade(CountingLonger)
    driver.feed("b", timestamp=11 * SECOND)
    driver.feed("b", timestamp=21 * SECOND)
    assert driver.outputs("out") == ["a 0 10000 1", "b 0 20000 1"]


class CountingTexts(Counting):
    sums = Tumbling(10, key=str, value=str)  # type: ignore[arg-type]


class Joining(Handler[str]):
    pairs = JoinBuffer(key=str, left=Order, right=str, within=10, join="left")
    out = Output("out", value=str)

    def on_record(self, record: Record[str]) -> None:
        self.pairs.left(record, record.value, Order(5))

    def on_unmatched(self, name: str, key: str, side: str, value: Any, timestamp: int) -> None:
        self.out.send(f"{key} {value.cents}")


class JoiningOtherwise(Joining):
    pairs = JoinBuffer(key=str, left=NewOrder, right=str, within=10, join="left")  # type: ignore[call-overload]


def test_an_open_window_and_a_record_that_waits_in_a_join_have_types_as_tables_have() -> None:
    for kind, changed, table, output in (
        (Counting, CountingTexts, "sums", "a 0 10000 1"),
        (Joining, JoiningOtherwise, "pairs", "a 5"),
    ):
        driver = Driver(kind)
        driver.feed("a", timestamp=1 * SECOND)
        with pytest.raises(TableTypeChanged, match=f"table '{table}'"):
            driver.upgrade(changed)
        with pytest.raises(UnknownSchema, match=f"holds table '{table}'"):
            driver.upgrade(Noting)
        driver.upgrade(kind)
        driver.feed("b", timestamp=60 * SECOND)
        assert driver.outputs("out")[0] == output


# Commands


class Commanded(Noting):
    def on_command(self, command: str, record: Record[bytes]) -> None:
        self.seen[command] = len(record.value)


class CommandedOtherwise(Noting):
    def on_command(self, command: str, record: Record[bytes]) -> None:
        raise KeyError(command)


def commanded(interval: Interval = "commit") -> Driver:
    """A service that stops before it takes a command."""
    driver = Driver(Commanded, delta_interval=interval)
    driver.feed("a")
    driver.commit()
    driver.command("close", b"xy", via_control_topic=True)
    driver.crash()
    return driver


def test_a_waiting_command_goes_to_the_next_release_which_may_be_unable_to_obey() -> None:
    driver = commanded()
    driver.upgrade(CommandedOtherwise)
    with pytest.raises(HandlerFailed, match=r"commanded.input.control\[0\]@0: the handler raised KeyError: 'close'"):
        driver.advance(5)
    driver.upgrade(Commanded)
    driver.advance(5)
    assert driver.table("seen") == {"a": 0, "close": 2}


def test_a_waiting_command_that_no_release_obeys_is_reported() -> None:
    driver = commanded()
    driver.upgrade(Noting)
    driver.advance(5)
    (event,) = events(driver, "command_rejected")
    assert event["cause"] == "'close': Noting has no on_command. Next: run code that has it, and send it again"
    driver.upgrade(Commanded)
    driver.advance(5)
    assert driver.table("seen") == {"a": 0}, "it was taken"


def test_a_pinned_command_of_a_gap_needs_the_code_that_obeyed_it() -> None:
    driver = Driver(Commanded, delta_interval=60.0)
    driver.feed("a")
    driver.command("close", b"xy", via_control_topic=True)
    driver.advance(2)
    assert driver.table("seen") == {"a": 0, "close": 2}
    with pytest.raises(NonDeterministicReplay):
        driver.upgrade(Noting, crash=True)
    driver.upgrade(Commanded)
    assert driver.table("seen") == {"a": 0, "close": 2}


# Records of an old type: unread, dead letters, retries


class Orders(Handler[Order]):
    seen = Table(key=str, value=int)
    on_failure: ClassVar = {ValueError: dead_letter()}

    def on_record(self, record: Record[Order]) -> None:
        if record.value.cents < 0:
            raise ValueError("negative")
        self.seen[str(record.offset)] = record.value.cents


class NewOrders(Handler[NewOrder]):
    seen = Table(key=str, value=int)
    on_failure: ClassVar = {KeyError: dead_letter()}

    def on_record(self, record: Record[NewOrder]) -> None:
        self.seen[str(record.offset)] = abs(record.value.minor)


class WithoutPolicy(Handler[Order]):
    seen = Table(key=str, value=int)

    def on_record(self, record: Record[Order]) -> None:
        self.seen[str(record.offset)] = abs(record.value.cents)


class Repaired(Orders):
    def on_record(self, record: Record[Order]) -> None:
        self.seen[str(record.offset)] = abs(record.value.cents)


def test_an_unread_record_of_another_type_stops_the_partition_or_goes_where_its_policy_says() -> None:
    driver = Driver(Orders)
    driver.feed(Order(1))
    driver.upgrade(NewOrders)
    with pytest.raises(UndecodableRecord, match="missing required field `minor`"):
        driver.feed(msgspec.json.encode(Order(2)))
    driver.upgrade(Orders)
    assert driver.table("seen") == {"0": 1, "1": 2}


def test_a_dead_letter_of_another_type_fails_again_and_stays() -> None:
    driver = Driver(Orders)
    driver.feed(Order(-5), key="k")
    driver.upgrade(NewOrders)
    before = driver.dead_letters()
    driver.release("k")
    driver.advance(5)
    (event,) = events(driver, "replay_failed")
    assert "UndecodableRecord: ValidationError: Object missing required field `minor`" in event["cause"]
    assert driver.dead_letters() == before
    driver.upgrade(Repaired)
    driver.release("k")
    driver.advance(5)
    assert (driver.dead_letters(), driver.table("seen")) == ([], {"0": 5})


def test_blocked_keys_need_a_policy() -> None:
    driver = Driver(Orders)
    driver.feed(Order(-5), key="k")
    with pytest.raises(UnknownSchema, match=r"'statehold.parked', .* dead letters wait or were resolved, "):
        driver.upgrade(WithoutPolicy)
    driver.upgrade(Repaired)
    assert len(driver.dead_letters()) == 1


def test_a_waiting_redrive_is_rejected_by_a_release_without_a_policy_and_the_dead_letter_stays() -> None:
    driver = Driver(Orders)
    driver.feed(Order(-5))
    driver.commit()
    driver.release()
    driver.upgrade(WithoutPolicy, crash=True)
    driver.advance(5)
    (event,) = events(driver, "command_rejected")
    assert "dlq-replay: " in event["cause"]
    assert len(driver.dead_letters()) == 1


class Retrying(Handler[Order]):
    out = Output("out", value=int)
    on_failure: ClassVar = {ValueError: retry_later(5)}

    def on_record(self, record: Record[Order]) -> None:
        if record.value.cents < 0:
            raise ValueError("negative")
        self.out.send(record.value.cents)


class RetryingNew(Handler[NewOrder]):
    out = Output("out", value=int)
    on_failure: ClassVar = {ValueError: retry_later(5)}

    def on_record(self, record: Record[NewOrder]) -> None:
        self.out.send(record.value.minor)


class RetryingRepaired(Retrying):
    def on_record(self, record: Record[Order]) -> None:
        self.out.send(abs(record.value.cents))


class RetryingLater(RetryingRepaired):
    on_failure: ClassVar = {ValueError: retry_later(10)}


def test_a_retried_record_of_another_type_becomes_a_dead_letter() -> None:
    driver = Driver(Retrying)
    driver.feed(Order(-5), key="k")
    driver.upgrade(RetryingNew)
    driver.advance(10)
    (found,) = driver.dead_letters()
    assert isinstance(found, DeadLetter)
    assert (found.error, msgspec.json.decode(found.value or b"")) == ("UndecodableRecord", {"cents": -5})


def test_retries_of_a_delay_that_is_gone_stay_and_are_reported() -> None:
    driver = Driver(Retrying)
    driver.feed(Order(-5), key="k")
    driver.upgrade(RetryingLater)
    (event,) = events(driver, "retries_unread")
    assert "add retry_later(5) again" in event["cause"]
    driver.feed(Order(1))
    driver.advance(60)
    assert driver.outputs("out") == [1]
    driver.upgrade(RetryingRepaired)
    driver.advance(10)
    assert driver.outputs("out") == [1, 5]


# Rows of a sink that only the database has


class Row(msgspec.Struct, frozen=True):
    name: str
    number: int


class Storing(Noting):
    factor: ClassVar[int] = 1
    rows = Sink("rows", value=Row, key="name")

    def on_record(self, record: Record[str]) -> None:
        self.seen[record.value] = self.factor
        self.rows.put(Row(record.value, self.factor))


class StoringOtherwise(Storing):
    factor: ClassVar[int] = 100


def test_rows_that_only_the_database_has_need_the_code_that_wrote_them() -> None:
    driver = Driver(Storing, autocommit=False)
    driver.feed("a")
    driver.broker.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        driver.commit()
    driver.crash()
    with pytest.raises(NonDeterministicReplay, match="the code has changed"):
        driver.upgrade(StoringOtherwise, crash=True)
    driver.upgrade(Storing)
    driver.commit()
    assert (driver.rows("rows"), driver.table("seen")) == ([Row("a", 1)], {"a": 1})
