"""Dead letters for whoever operates a service: which wait, and having them replayed or discarded by it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import msgspec

from statehold.admin.commands import Commander
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import StableReader
from statehold.kafka.feeds.control_topic import largest_command
from statehold.messages import command
from statehold.messages.dead_letter import FAILED_AGAIN, Letter, Trace, read, waiting

#: letters asked for at once
_ROUND = 1000
#: what a command takes beside its value
_SPARE = 1200


class Outcome(msgspec.Struct, kw_only=True):
    """What became of the letters of one partition that were asked for."""

    partition: int
    asked: int = 0
    done: int = 0
    #: offsets of records that failed again
    failed: list[int] = []
    #: asked for, and no mark has acknowledged it in time
    late: bool = False


class DeadLetters:
    """For tools; used by one thread. Blocks; raises KafkaTrouble when the cluster does not answer."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._settings, self._names = settings, names
        self._admin = Admin(settings, names.group)

    def records(self, partitions: Sequence[int] = ()) -> Iterator[tuple[int, list[Letter | Trace]]]:
        """Letters and traces of each partition, in order.

        :raises TopicMissing: the service writes none. :raises UsageError: no such partition.
        """
        topic = self._names.dead
        facts = self._admin.describe([topic])[topic]
        if facts is None:
            raise TopicMissing(
                f"{topic} does not exist: no handler of this service has a policy with dead_letter, or its topics were "
                f"not created (`statehold topics create`)"
            )
        wrong = [partition for partition in partitions if partition >= facts.partitions]
        if wrong:
            raise UsageError(f"{topic} has partitions 0 to {facts.partitions - 1}, not {wrong[0]}")
        reader = StableReader(self._settings, self._names.group, self._admin)
        try:
            for partition in partitions or range(facts.partitions):
                found = []
                for batch in reader.read(topic, partition, *reader.bounds(topic, partition)):
                    found += [each for each in map(read, batch) if each is not None]
                yield partition, found
        finally:
            reader.close()

    def waiting(
        self, partitions: Sequence[int] = (), wanted: Callable[[Letter], bool] = lambda _: True
    ) -> dict[int, list[Letter]]:
        """The letters that wait, by partition; raises as `records`."""
        found = {at: [each for each in waiting(records) if wanted(each)] for at, records in self.records(partitions)}
        return {partition: letters for partition, letters in found.items() if letters}

    def settle(
        self, what: str, partitions: Sequence[int], wanted: Callable[[Letter], bool], why: str, timeout: float
    ) -> list[Outcome]:
        """Have them replayed or discarded, those too that follow meanwhile; the service does it, in its order.

        Letters behind one that fails again stay. `timeout` is in seconds, for each round of each partition.

        :raises UsageError: one is too large for a command; nothing was sent for its partition.
        """
        outcomes: dict[int, Outcome] = {}
        stuck: set[tuple[int, bytes | None, int]] = set()
        while True:
            rounds = 0
            for partition, letters in self.waiting(partitions, wanted).items():
                outcome = outcomes.setdefault(partition, Outcome(partition=partition))
                chosen = [letter for letter in letters if _line(letter) not in stuck][:_ROUND]
                if chosen and not outcome.late:
                    rounds += 1
                    stuck |= self._ask(what, partition, chosen, why, timeout, outcome)
            if not rounds:
                return list(outcomes.values())

    def _ask(
        self, what: str, partition: int, letters: Sequence[Letter], why: str, timeout: float, outcome: Outcome
    ) -> set[tuple[int, bytes | None, int]]:
        """One round; the keys of which nothing more is to be asked."""
        commander, asked = Commander(self._settings, self._names), command.new_id()
        values = [self._fitting(letter, letter.request(what, why)) for letter in letters]
        sent = commander.send_each(what, partition, values, asked)
        answer = commander.await_answers([sent], timeout, full=False)[0]
        outcome.asked += len(letters)
        outcome.late = answer.transaction is None
        found = [each for _, records in self.records([partition]) for each in records]
        traces = {each.offset: each for each in found if isinstance(each, Trace) and each.id == asked}
        failed = {offset for offset, trace in traces.items() if trace.what == FAILED_AGAIN}
        outcome.failed += sorted(failed)
        outcome.done += len(traces) - len(failed)
        return {_line(letter) for letter in letters if letter.offset not in traces or letter.offset in failed}

    def _fitting(self, letter: Letter, value: bytes) -> bytes:
        most = largest_command(self._settings) - _SPARE
        if len(value) > most:
            raise UsageError(
                f"the letter of {letter.topic}[{letter.partition}]@{letter.offset} has {len(value)} bytes, and a "
                f"command may have {most}, a quarter of kafka.message_max_bytes: raise that for the service and here"
            )
        return value


def by_key(letters: Sequence[Letter]) -> dict[tuple[int, bytes | None, int], list[Letter]]:
    """Letters that wait for each other, in order; one without a parked key is alone."""
    found = defaultdict(list)
    for letter in letters:
        found[_line(letter)].append(letter)
    return dict(found)


def _line(letter: Letter) -> tuple[int, bytes | None, int]:
    return letter.partition, letter.key, -1 if letter.ordered else letter.offset
