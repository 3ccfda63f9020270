"""Dead letters of a rebuild: what the new code dead-letters has to be resolved by what the service did later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from statehold.api.record import MemoryMessage, key_bytes
from statehold.messages.command import COMMAND_HEADER, BadCommand, command_of, header
from statehold.messages.dead_letter import BLOCKED_KEYS, DISCARD, REPLAY, RESOLVED, DeadLetter, read, request_of
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.messages.sent import Sent
from statehold.rehearsal.failing import NewFailures
from statehold.snapshot.format.partition_identity import Place
from statehold.state.state import State
from statehold.state.system_names import by_default_name
from statehold.worker.failures.history import At
from statehold.worker.handler.engine import Engine


class OpenFailures(NamedTuple):
    """The failures of the new code that are not resolved."""

    #: dead letters that block no key: the record, and its place in the partition's order
    dead: Mapping[At, int]
    #: records on a retry topic, by that topic
    waiting: frozenset[tuple[str, At]]


NO_FAILURES: Final = OpenFailures({}, frozenset())


class RebuildFailures(NewFailures):
    """The failures of one partition. The engine changes when the partition's state leaves memory for a time."""

    def __init__(self, engine: Engine, place: Place, opened: OpenFailures = NO_FAILURES) -> None:
        super().__init__(engine, place.names)
        self._partition = place.partition
        self._waiting.update(opened.waiting)
        #: dead letters of the new code that block no key: the record, and its place in the partition's order
        self._dead: dict[At, int] = dict(opened.dead)

    def opened(self) -> OpenFailures:
        return OpenFailures(dict(self._dead), frozenset(self._waiting))

    def leave_engine(self) -> None:
        """Hold the engine no longer, so that its memory is free."""
        del self._engine

    def continue_with(self, engine: Engine) -> None:
        """Use this engine from now on, which has the same state."""
        self._engine = engine

    def sent(self, outputs: Iterable[Sent]) -> None:
        """Note the dead letters among these. No output leaves the process."""
        for topic, value, key, _, _, _, _, headers in outputs:
            if topic != self._names.dead:
                continue
            blob = key_bytes(key)
            found = read(MemoryMessage(topic, self._partition, 0, value, blob, list(headers or ())))
            if isinstance(found, DeadLetter) and not found.ordered:
                self._dead[found.topic, found.offset] = found.place

    def adapted(self, pinned: PinnedMessage) -> PinnedMessage:
        """Return what a command means for the new code.

        The service has redriven a dead letter. If the new code has handled that record in its place, to redrive it
        would handle it twice. So the command only notes that the dead letter is resolved.
        """
        try:
            command = command_of(pinned)
            request = request_of(pinned) if command is not None and command.name == REPLAY else None
        except BadCommand:
            return pinned
        if command is None or request is None or request.ordered:
            return pinned
        if (request.topic or self._names.input, request.offset) in self._dead:
            return pinned
        rest = [each for each in pinned.headers() or () if each[0] != COMMAND_HEADER]
        discard = header(DISCARD, command.id, command.issuer)
        again = Pinned(pinned.offset(), pinned.timestamp()[1], pinned.key(), pinned.value(), (*rest, discard))
        return PinnedMessage(pinned.topic(), pinned.partition(), again)

    def unresolved(self, state: State) -> list[str]:
        """Describe the records that the new code has neither handled nor resolved: the service would lose them."""
        found, tables = [], by_default_name(state.tables)
        if BLOCKED_KEYS in tables:
            if blocked := len(tables[BLOCKED_KEYS].stored):
                found.append(f"the new code fails at records of {blocked} key(s), which stay blocked")
            resolved = tables[RESOLVED].stored
            if dead := [at for at, place in self._dead.items() if place not in resolved]:
                first = f"{dead[0][0]}[{self._partition}]@{dead[0][1]}"
                found.append(f"the new code dead-letters {len(dead)} record(s), first {first}, which stay unresolved")
        if self.waiting:
            found.append(f"the new code sends {self.waiting} record(s) to a retry topic, where they would wait")
        return found
