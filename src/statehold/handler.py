"""What a user writes: one object per partition, called by one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, TypeVar

from statehold.errors import UsageError
from statehold.failures import Policy
from statehold.record import Record
from statehold.tables.timers import Timer, Timers

V = TypeVar("V")

#: A side effect outside Kafka: the function, its arguments, and the key (topic, partition, offset, index).
EffectKey = tuple[str, int, int, int]


class Handler(Generic[V]):
    """The base of a service's logic; `V` is the type of the input values.

    statehold makes one instance for each partition and calls it from that partition's thread only. State that must
    survive lives in `Table`s; anything else on `self` is gone after a restart and is not undone with a record.
    """

    #: What becomes of a record that raises an exception of these classes; see `statehold.failures`.
    on_failure: ClassVar[Mapping[type[BaseException], Policy]] = {}
    #: Begins the names of the tables that statehold declares itself. Set it only to restore a state whose writer used
    #: another prefix.
    system_prefix: ClassVar[str] = "statehold."
    #: The input partition that this instance handles.
    partition: int = -1
    #: True while the gap is replayed: outputs and effects are suppressed, tables are not.
    replaying: bool = False

    _note_effect: Callable[[Callable[..., object], tuple[Any, ...]], None]
    _timers: Timers | None = None

    def on_record(self, record: Record[V]) -> None:
        """Handle one record. Raising undoes all that it wrote and sent, and the partition stops at this record."""
        raise NotImplementedError

    def on_batch(self, records: Sequence[Record[V]]) -> None:
        """Handle some records at once, for vectorised code. How they are cut into batches must not matter."""
        raise NotImplementedError

    def on_command(self, command: str, record: Record[bytes]) -> None:
        """A record of the input with the header `statehold-command`: part of the order, never given to on_record.

        `command` is the name in the header; `record.value` is b"" where the record has none, as those that `statehold
        command` sends. A name that the handler does not know is best ignored: raising stops the partition, as in
        on_record. The command `take` is statehold's own (it takes a full) and does not come here.
        """

    def on_timer(self, timer: Timer) -> None:
        """A timer that `schedule` has set is due. Writes, outputs and effects count as in on_record."""
        raise NotImplementedError

    def on_live(self) -> None:
        """The partition is restored and about to handle new records. For reading: writing or sending is an error."""

    def on_stop(self) -> None:
        """The partition is going away from this instance; nothing that is written here is kept."""

    def effect(self, function: Callable[..., object], *args: Any) -> None:
        """Call `function(key, *args)` after the commit of this record: never in a replay, at least once.

        `key` is (topic, partition, offset, index), the same whenever this effect is tried again: use it to make the
        other side ignore a second call. The function runs on a thread of its own and must not touch tables.
        """
        self._note_effect(function, args)

    def schedule(self, at: datetime | int, payload: Any = None, *, id: str = "") -> str:
        """Call `on_timer` once the partition's time has reached `at` (with a zone, or milliseconds since 1970); its id.

        Part of the state, as a table is. `payload` is plain data. With an `id` of your own it takes the place of the
        timer that has it; otherwise the id is made of the record's coordinates.
        """
        return self._own_timers().schedule(at, payload, id)

    def cancel(self, id: str) -> bool:
        """Forget a timer; whether there was one."""
        return self._own_timers().cancel(id)

    def _own_timers(self) -> Timers:
        if self._timers is None:
            raise UsageError(f"{type(self).__name__} has no on_timer, or no partition: nothing can be scheduled")
        return self._timers


def overrides(handler: Handler[Any], method: str) -> bool:
    return getattr(type(handler), method) is not getattr(Handler, method)
