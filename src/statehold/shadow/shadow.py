"""The door of this room: runs new code in parallel to a running service, partition by partition in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from statehold.api.handler import HandlerFactory
from statehold.config.settings import Settings
from statehold.errors import KafkaTrouble, RestoreTimeout
from statehold.health import process_memory
from statehold.ports import Cancelled, Clock
from statehold.rehearsal.fields import IgnoredFields
from statehold.rehearsal.rehearse import rehearsable
from statehold.shadow.follow import FollowedPartition, ShadowOptions
from statehold.shadow.report import ShadowReport, shadow_verdict
from statehold.shadow.source import ShadowReaders, ShadowSource

#: seconds between two looks at the changelogs, and while the outputs of a transaction are not readable yet
ROUND, SOON = 1.0, 0.1


class Shadow:
    """Used by one thread; any thread may call `report`. It reads, and writes nothing anywhere."""

    def __init__(
        self,
        source: ShadowSource,
        factory: HandlerFactory,
        partitions: Sequence[int],
        settings: Settings | None = None,
        ignore: Sequence[str] = (),
        examples: int = 3,
        ended: Callable[[], bool] = lambda: False,
        clock: Clock = time.monotonic,
    ) -> None:
        """`ended`: the shadow ends soon after it returns True.

        :raises UsageError: the handler cannot be rehearsed.
        """
        kind = rehearsable(factory)
        self._ignored, self._ended, self._clock = IgnoredFields(ignore), ended, clock
        self._began = clock()
        self._names = source.place(partitions[0]).names
        self._readers = ShadowReaders(source, len(self._names.inputs))
        options = ShadowOptions(factory, kind, settings or Settings(), self._ignored, examples)
        self._partitions = [
            FollowedPartition(source, self._readers, each, options, clock, ended) for each in partitions
        ]

    def run(self, pause: Callable[[float], object], after_turn: Callable[[], object]) -> None:
        """Shadow until `ended`, or until no partition can be taken over by the new code.

        `pause` waits for at most that number of seconds; the thread calls `after_turn` after each turn.
        """
        try:
            while not self._ended() and not all(each.over for each in self._partitions):
                rest = self.turn()
                after_turn()
                if rest:
                    pause(rest)
        finally:
            self._readers.close()

    def turn(self) -> float:
        """Give each partition its turn. Return the seconds until the next one."""
        why = ""
        try:
            return self._turn()
        except Cancelled:
            return 0.0
        except (KafkaTrouble, RestoreTimeout) as error:
            why = f"Kafka does not answer: {error}"
        self._readers.close()  # now, because the error has held reads of these clients until here
        for each in self._partitions:
            if not each.over:
                each.trouble(why)
        return ROUND

    def _turn(self) -> float:
        asked = self._clock()
        following = [each.partition for each in self._partitions if each.follows]
        ends = self._readers.changelog.ends(self._names.changelog, following) if following else {}
        rest = ROUND
        for each in self._partitions:
            if self._ended():
                return 0.0
            if each.turn(ends.get(each.partition), asked):
                rest = 0.0
            elif each.waits:
                rest = min(rest, SOON)
        return rest

    def report(self, *, ended: bool = False) -> ShadowReport:
        """Return what was found so far. Only its own thread may say that it `ended`."""
        shown = [each.look(fully=ended) for each in self._partitions]
        return ShadowReport(
            shadow_verdict(shown),
            ended,
            self._clock() - self._began,
            process_memory.used(),
            dict(self._ignored.used),
            shown,
        )
