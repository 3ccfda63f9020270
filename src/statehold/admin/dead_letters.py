"""Lists a service's dead letters, and makes the service redrive or discard them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing

import msgspec

from statehold.admin.commands import Commander
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import TopicMissing, UsageError
from statehold.kafka.admin.admin import Admin
from statehold.kafka.clients.committed_reader import CommittedReader
from statehold.kafka.feeds.control_topic import largest_command
from statehold.messages import command
from statehold.messages.dead_letter import FAILED_AGAIN, REPLAY, DeadLetter, Resolution, read, waiting

#: Partition, blocked key, and the record's place for a dead letter without one, which is alone.
OrderKey = tuple[int, bytes | None, int]

#: Dead letters per partition in a round of commands.
_ROUND = 1000
#: Bytes of a command in addition to its value.
_SPARE = 1200


class DeadLetterResult(msgspec.Struct, kw_only=True):
    """Result of a redrive or discard for one partition."""

    partition: int
    #: Number of requested dead letters, and how many of them were resolved.
    asked: int = 0
    done: int = 0
    #: Names of the dead letters whose record failed again.
    failed: list[str] = []
    #: True if no commit record acknowledged the request in time.
    late: bool = False


class DeadLetters:
    """Reads and resolves dead letters for tools. Single-threaded; every method blocks.

    Every method raises KafkaTrouble when the cluster does not answer.
    """

    def __init__(self, settings: Settings, names: Names, advice: str = "") -> None:
        """`advice` begins the advice of a service without a topic of dead letters."""
        self._settings, self._names, self._advice = settings, names, advice
        self._admin = Admin(settings, names.group)

    def records(self, partitions: Sequence[int] = ()) -> Iterator[tuple[int, list[DeadLetter | Resolution]]]:
        """Yield the dead letters and traces of each partition, in offset order.

        :raises TopicMissing: the service has no dead-letter topic. :raises UsageError: a partition does not exist.
        """
        topic = self._names.dead
        facts = self._admin.describe([topic])[topic]
        if facts is None:
            raise TopicMissing(
                f"{topic}: list dead letters: the topic does not exist, so no record is a dead letter. Next: "
                f"{self._advice}check that the handler has a failure policy with dead_letter, and run "
                f"`statehold topics create` if it has"
            )
        wrong = [partition for partition in partitions if partition >= facts.partitions]
        if wrong:
            raise UsageError(f"{topic} has partitions 0 to {facts.partitions - 1}, not {wrong[0]}")
        with closing(CommittedReader(self._settings, self._names.group, self._admin)) as reader:
            for partition in partitions or range(facts.partitions):
                found = []
                for batch in reader.read(topic, partition, *reader.bounds(topic, partition)):
                    found += [each for each in map(read, batch) if each is not None]
                yield partition, found

    def waiting(
        self, partitions: Sequence[int] = (), wanted: Callable[[DeadLetter], bool] = lambda _: True
    ) -> dict[int, list[DeadLetter]]:
        """Return the unresolved dead letters by partition. Raises the errors of `records`."""
        found = {at: [each for each in waiting(records) if wanted(each)] for at, records in self.records(partitions)}
        return {partition: dead_letters for partition, dead_letters in found.items() if dead_letters}

    def resolve(
        self, what: str, partitions: Sequence[int], wanted: Callable[[DeadLetter], bool], why: str, timeout: float
    ) -> list[DeadLetterResult]:
        """Make the service redrive or discard the dead letters, in order, including those that arrive meanwhile.

        Each round redrives twice as many dead letters of a key as the round before, beginning with one, so that few are
        sent behind one that fails again. `timeout` is in seconds, for each round.

        :raises UsageError: a dead letter is too large for a command; nothing was sent in its round.
        """
        outcomes: dict[int, DeadLetterResult] = {}
        stuck: set[OrderKey] = set()
        most = defaultdict[OrderKey, int](lambda: 1 if what == REPLAY else _ROUND)
        while True:
            chosen: dict[int, list[DeadLetter]] = {}
            for partition, dead_letters in self.waiting(partitions, wanted).items():
                outcome = outcomes.setdefault(partition, DeadLetterResult(partition=partition))
                if not outcome.late and (first := _first(dead_letters, most, stuck)):
                    chosen[partition] = first
            if not chosen:
                return list(outcomes.values())
            stuck |= self._ask(what, chosen, why, timeout, outcomes)
            for key in {_order_key(dead_letter) for dead_letters in chosen.values() for dead_letter in dead_letters}:
                most[key] *= 2

    def _ask(
        self,
        what: str,
        chosen: Mapping[int, Sequence[DeadLetter]],
        why: str,
        timeout: float,
        outcomes: Mapping[int, DeadLetterResult],
    ) -> set[OrderKey]:
        """Send one round of commands to all partitions. Return the keys that must not be requested again."""
        commander, asked = Commander(self._settings, self._names), command.new_id()
        values = {
            partition: [self._fitting(dead_letter, dead_letter.request(what, why)) for dead_letter in dead_letters]
            for partition, dead_letters in chosen.items()
        }
        sent = [commander.send_each(what, partition, each, asked) for partition, each in values.items()]
        answers = commander.await_answers(sent, timeout, full=False)
        traces = {
            (partition, each.place): each
            for partition, found in self.records(list(chosen))
            for each in found
            if isinstance(each, Resolution) and each.id == asked
        }
        stuck = set()
        for answer in answers:
            outcome, dead_letters = outcomes[answer.partition], chosen[answer.partition]
            outcome.asked += len(dead_letters)
            outcome.late = answer.transaction is None
            for dead_letter in dead_letters:
                trace = traces.get((dead_letter.partition, dead_letter.place))
                if trace is None:
                    stuck.add(_order_key(dead_letter))
                elif trace.what == FAILED_AGAIN:
                    outcome.failed.append(dead_letter.name)
                    stuck.add(_order_key(dead_letter))
                else:
                    outcome.done += 1
        return stuck

    def _fitting(self, dead_letter: DeadLetter, value: bytes) -> bytes:
        most = largest_command(self._settings) - _SPARE
        if len(value) > most:
            raise UsageError(
                f"{dead_letter.topic}[{dead_letter.partition}]@{dead_letter.offset}: send the command: the dead letter "
                f"has {len(value)} bytes, the limit is {most}, a quarter of kafka.message_max_bytes. The dead letter "
                f"is unchanged. Next: raise kafka.message_max_bytes for the service and for this command"
            )
        return value


def by_key(dead_letters: Sequence[DeadLetter]) -> dict[OrderKey, list[DeadLetter]]:
    """Group dead letters by blocked key, in order. A dead letter without a blocked key has a group of its own."""
    found = defaultdict(list)
    for dead_letter in dead_letters:
        found[_order_key(dead_letter)].append(dead_letter)
    return dict(found)


def _first(
    dead_letters: Sequence[DeadLetter], most: Mapping[OrderKey, int], stuck: Collection[OrderKey]
) -> list[DeadLetter]:
    """Return the first dead letters of each key, in order: at most `most` of it, and a round in all."""
    count: Counter[OrderKey] = Counter()
    found = []
    for dead_letter in dead_letters:
        key = _order_key(dead_letter)
        if key not in stuck and count[key] < most[key]:
            count[key] += 1
            found.append(dead_letter)
    return found[:_ROUND]


def _order_key(dead_letter: DeadLetter) -> OrderKey:
    return dead_letter.partition, dead_letter.key, -1 if dead_letter.ordered else dead_letter.place
