"""Commands of the control topic: which the next mark obeys and pins (docs/design.md, "Pinned commands and ticks").

They are taken when a transaction closes and nothing else is in flight, handled after its last record, and acknowledged,
pinned and passed by the mark of this very transaction: what does not commit is undone with it and taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from statehold.messages.command import FINISH_UPGRADE, SWITCHES, Command
from statehold.messages.dead_letter import REQUESTS
from statehold.messages.pinned_command import Pinned, PinnedMessage
from statehold.ports import Asked
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import Mark
from statehold.worker.common.context import Tools
from statehold.worker.failures.decisions import Failing
from statehold.worker.handler.engine import Engine
from statehold.worker.handler.record_failure import Poisoned
from statehold.worker.participants.idle_clock import Ticking

#: users' commands in one transaction: each may take as long as a record does
_MOST: Final = 100


class Obeyed(NamedTuple):
    """What a mark says of the control topic."""

    commands: tuple[Command, ...]
    pinned: tuple[Pinned, ...]
    #: next offset of the control topic
    next: int
    #: the last of them that has the partition stand still, or go on
    switch: Command | None = None
    #: next offset of each retry topic
    retries: Mapping[str, int] = MappingProxyType({})


class Controlled:
    """Used by the partition's thread, during one live phase."""

    def __init__(self, tools: Tools, engine: Engine, mark: Mark) -> None:
        self._tools, self._engine, self._control = tools, engine, tools.control()
        self._topic = tools.place.names.control
        self._next = mark.positions.get(self._topic, 0)
        #: a mark repeats what it pins and has to fit a message
        self._room = tools.settings.kafka.message_max_bytes // 2
        self.ticking = Ticking(tools, engine)

    def waiting(self, mark: Mark) -> bool:
        """A command has come that no mark obeys yet, or the clock has something to say."""
        return len(self._control.waiting(self._next)[0]) > 0 or self.ticking.due(mark)

    def hold(self) -> Obeyed:
        """None now: a record or a command that failed comes first."""
        return Obeyed((), (), self._next)

    def obey(
        self, mark: Mark, failing: Failing, send: Callable[[], None], *, idle: bool, alone: bool = False
    ) -> Obeyed:
        """Handle the users' commands that have come, and the clock where it is `idle`; `mark` is the last one.
        `alone`: only the first of them.

        `send` is called after each, and sends what it has sent. :raises Poisoned: on_command, on_timer or the brokers
        refused one; its outputs and writes are to be rolled back.
        """
        obeyed = self._obey(mark, failing, send, 1 if alone else _MOST)
        if not idle or (alone and obeyed.pinned) or not self.ticking.due(mark):
            return obeyed
        tick = self.ticking.pin()
        self._engine.obey(PinnedMessage(self._topic, self._tools.place.partition, tick))
        send()
        return obeyed._replace(pinned=(*obeyed.pinned, tick))

    def _obey(self, mark: Mark, failing: Failing, send: Callable[[], None], most: int) -> Obeyed:
        asked, end = self._control.waiting(self._next)
        commands: list[Command] = []
        pinned: list[Pinned] = []
        room, switch = self._room, None
        for each in asked:
            if each.command.name in SWITCHES:
                if not self._may_pin(mark, each):
                    continue
                switch = each.command
            if each.pinned is not None:
                room -= each.pinned.size
                if len(pinned) >= most or (room < 0 and pinned):
                    return Obeyed(tuple(commands), tuple(pinned), each.command.offset, switch)
                if not self._may_pin(mark, each):
                    continue
                if self._hand_over(each.command.name, each.pinned, failing, send):
                    pinned.append(each.pinned)
            commands.append(each.command)
            if each.command.name == FINISH_UPGRADE:  # what follows may need the newer format
                return Obeyed(tuple(commands), tuple(pinned), each.command.offset + 1, switch)
        return Obeyed(tuple(commands), tuple(pinned), end, switch)

    def _hand_over(self, name: str, pinned: Pinned, failing: Failing, send: Callable[[], None]) -> bool:
        """Whether anything was done: a replay then does it, too.

        :raises Poisoned: undo; one about a letter then comes again, with a verdict.
        """
        message = PinnedMessage(self._topic, self._tools.place.partition, pinned)
        try:
            done = self._engine.obey(message)
            send()
        except Poisoned as poison:
            if name not in REQUESTS or not failing.judge((self._topic, pinned.offset), poison):
                raise
            raise Poisoned(poison.offset, poison.error, decided=True) from poison
        if not done:
            self._tools.log.warning(
                "command_refused",
                offset=pinned.offset,
                cause=f"{name}: it is not this letter's turn, or it was settled before; `statehold dlq list`",
            )
        return done

    def committed(self, obeyed: int) -> None:
        """The mark that passes the control topic up to here is the truth."""
        self._next = obeyed

    def close(self) -> None:
        self._control.close()

    def _may_pin(self, mark: Mark, asked: Asked) -> bool:
        """An older release would drop what it does not know, and replay the gap without it."""
        if mark.format >= frame.PINNING:
            return True
        self._tools.log.warning(
            "command_refused",
            offset=asked.command.offset,
            cause=f"{asked.command.name!r} came by {self._topic}, which needs format {frame.PINNING}: `statehold "
            f"finish-upgrade` first, then send it again",
        )
        return False
