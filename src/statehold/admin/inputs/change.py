"""`statehold state inputs`: changes the inputs of a stopped service that has state (rule M5).

If the first input stays, each partition gets a state-replacement record on its changelog. If another input comes first,
statehold's topics have other names: the same transaction then begins the new changelog and closes the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Final

import msgspec

from statehold.admin.dead_letters import DeadLetters
from statehold.admin.initial_commit import control_position
from statehold.admin.inputs.ends import InputEnds, require_named
from statehold.admin.inputs.former import FormerService
from statehold.admin.inputs.report import ChangedInputs, InputResult, JoinCount, PartitionResult
from statehold.admin.inputs.requested import InputRequest
from statehold.admin.state.key_layout import drop_partition_data
from statehold.admin.state.open_failures import unresolved_failures
from statehold.admin.state.stopped_service import LastState, StoppedService
from statehold.admin.topics import ServiceTopics
from statehold.api.handler import HandlerFactory
from statehold.bound.topics import output_topics
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused
from statehold.kafka.admin.admin import TopicFacts
from statehold.kafka.tools.group_lock import GroupLock
from statehold.messages.dead_letter import RESOLVED
from statehold.snapshot import state_replacement
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord
from statehold.snapshot.state_replacement import Adoption, DepartingPartition, ReplacementReason
from statehold.state import digest
from statehold.state.digest import MODULUS
from statehold.state.kinds.clock import ClockTable
from statehold.state.kinds.joins import JoinTable
from statehold.state.state import State
from statehold.state.system_names import CLOCK, by_default_name

TOOL: Final = "state inputs"

#: called with the former names and the last commit records, after the fence; raises if a sinks' database is elsewhere
CompareSinks = Callable[[Names, Sequence[CommitRecord]], None]


def change(
    settings: Settings,
    names: Names,
    handler: HandlerFactory,
    request: InputRequest,
    reason: ReplacementReason,
    *,
    quiet: float = 5.0,
    dry_run: bool = False,
    compare_sinks: CompareSinks | None = None,
) -> ChangedInputs:
    """Change the inputs of the state to those of `names`, as `request` confirms. One transaction, or nothing.

    Memory holds one partition's state at a time.

    :raises UsageError: the options do not lead from the state's inputs to the code's.
    :raises ToolRefused: the group has a member; an input that ends has unread records; an added one does not hold its
        position; a dead letter, retry or command is pending. The state was not replaced.
    :raises StateRefused: a partition could not be restored. :raises TopicMissing: an added input does not exist.
    """
    require_named(request)
    with (
        closing(FormerService(settings, names, handler, request, TOOL)) as former,
        closing(_Change(former, handler, request, quiet, compare_sinks)) as work,
    ):
        if dry_run:
            return work.shown()
        with GroupLock(settings, work.locked_names, former.stopped.admin, work.count, TOOL) as hold:
            return work.replace_state(hold, reason)


class _Change:
    def __init__(
        self,
        former: FormerService,
        handler: HandlerFactory,
        request: InputRequest,
        quiet: float,
        compare_sinks: CompareSinks | None,
    ) -> None:
        self.former, self.old, self.request, self.compare_sinks = former, former.stopped, request, compare_sinks
        self.names, self.before, self.count = former.now, former.inputs, former.partitions
        #: the first input changes, and with it the names of statehold's topics
        self.moves = self.names.input != self.before[0]
        self.new = StoppedService(self.old.settings, self.names, handler, TOOL)
        self.ends = InputEnds(self.old, request, self.before, self.count, quiet)
        self.result = ChangedInputs(
            before=list(self.before),
            after=list(self.names.inputs),
            moved=self.moves,
            old_digest="",
            digest="",
            partitions=[],
        )
        self.commit_records: list[CommitRecord] = []
        self.inputs: list[list[InputResult]] = []
        self._sums = [0, 0]

    def close(self) -> None:
        self.ends.close()
        self.new.close()

    @property
    def locked_names(self) -> Names:
        """The names whose first input the command subscribes to: a former one may not exist any more."""
        return self.old.names if self.ends.facts[self.old.names.input] is not None else self.names

    def shown(self) -> ChangedInputs:
        self._require_resolved()
        if self.moves and self.old.admin.describe([self.names.changelog])[self.names.changelog] is not None:
            self._require_unused()
        self.commit_records = [self.former.last_commit_record(p) for p in range(self.count)]
        self._compare_sinks()
        self._look()
        for partition in range(self.count):
            self._read(partition)
        return self._done()

    def replace_state(self, hold: GroupLock, reason: ReplacementReason) -> ChangedInputs:
        self.former.fence()
        self._require_resolved()
        self.commit_records = [self.former.last_commit_record(p) for p in range(self.count)]
        self._compare_sinks()
        self._look()
        facts = self._facts()
        if self.moves:
            self.new.fence(range(self.count))
        lineage = state_replacement.new_lineage()
        adoptions = [self._adoption(p, lineage, facts) for p in range(self.count)]
        self.ends.require_quiet()
        leaving = [
            DepartingPartition(self._former_place(p), commit_record, ",".join(self.names.inputs))
            for p, commit_record in enumerate(self.commit_records if self.moves else [])
        ]
        writer = self.new if self.moves else self.old
        commit_records = writer.replace_state(adoptions, hold.membership(), reason, leaving)
        for each in self.result.partitions:
            each.transaction = commit_records[each.partition].n
        self.result.lineage = lineage
        return self._done()

    # Before

    def _require_resolved(self) -> None:
        """:raises ToolRefused: a dead letter is unresolved: it is named by its place among the former inputs."""
        names = self.old.names
        if self.old.admin.describe([names.dead])[names.dead] is None:
            return
        waiting = DeadLetters(self.old.settings, names).waiting()
        if waiting:
            counts = ", ".join(f"partition {partition}: {len(each)}" for partition, each in waiting.items())
            raise ToolRefused(
                f"{names.dead}: change the inputs: dead letters are unresolved ({counts}), and they are named by their "
                f"place among {', '.join(self.before)}. Nothing was changed. Next: start the service with the former "
                f"code and use `statehold dlq replay` or `statehold dlq discard`"
            )

    def _compare_sinks(self) -> None:
        if self.compare_sinks is not None:
            self.compare_sinks(self.old.names, self.commit_records)

    def _read(self, partition: int) -> tuple[LastState, dict[str, int]]:
        """Read a partition's state without what the change removes; return the next offset of each new input.

        :raises ToolRefused: something is pending, or a record is not processed yet.
        """
        found = self.old.find(self._former_place(partition))
        state = found.state
        if text := self._pending(found, partition):
            raise ToolRefused(
                f"{self.old.names.input}: change the inputs: {text}. Nothing was changed. Next: start the service with "
                f"the former code until nothing is pending, and stop it"
            )
        before, resolved = state.digest, _resolved(state)
        drop_partition_data(state, (RESOLVED,))
        inputs = self.inputs[partition]
        self._count_older(inputs, state, partition)
        self.result.partitions.append(
            PartitionResult(
                partition=partition,
                keys=state.keys,
                old_digest=digest.show(before),
                digest=digest.show(state.digest),
                resolved=resolved,
                inputs=inputs,
                joins=_joins(state) if self.request.closed else [],
            )
        )
        self._sums = [(total + each) % MODULUS for total, each in zip(self._sums, (before, state.digest), strict=True)]
        return found, {each.topic: each.position for each in inputs if each.position is not None}

    def _pending(self, found: LastState, partition: int) -> str:
        """Describe what refers to a place among the former inputs; '' without any."""
        commit_record, names = found.commit_record, self.old.names
        if text := unresolved_failures(self.old, found, partition):
            return text
        waiting = control_position(self.old.admin, names, partition) - commit_record.positions.get(names.control, 0)
        if waiting > 0:
            return f"partition {partition}: {waiting} command(s) are pending on {names.control}"
        if self.moves and commit_record.effects:
            return f"partition {partition}: {len(commit_record.effects)} effect(s) are pending"
        return ""

    def _look(self) -> None:
        """Look at the inputs of all partitions, before anything is written.

        :raises ToolRefused: an added input does not hold its position, or one that ends has unread records.
        """
        former = {new: old for old, new in self.request.renamed.items()}
        for partition, commit_record in enumerate(self.commit_records):
            found = []
            for topic in self.names.inputs:
                if topic in self.request.added:
                    each = InputResult(topic=topic, what="added", position=self.ends.start(topic, partition))
                elif topic in former:
                    position = self.ends.start_of_renamed(topic, partition)
                    each = InputResult(topic=topic, what="renamed", former=former[topic], position=position)
                else:
                    position = commit_record.positions[topic]
                    each = InputResult(topic=topic, what="kept", old_position=position, position=position)
                each.unread, each.more = self.ends.behind(topic, partition, each.position or 0)
                found.append(each)
            self.inputs.append(
                found + [self.ends.removed(topic, partition, commit_record) for topic in self.request.closed]
            )

    def _count_older(self, inputs: Sequence[InputResult], state: State, partition: int) -> None:
        """Count the records of new inputs that are older than the partition's time."""
        clock = by_default_name(state.tables).get(CLOCK)
        if not isinstance(clock, ClockTable) or clock.now <= 0:
            return
        for each in inputs:
            if each.unread and each.what in ("added", "renamed"):
                each.older = self.ends.older(each.topic, partition, each.position or 0, clock.now)

    # After

    def _former_place(self, partition: int) -> Place:
        """Return the place of the old state; an input that ends may be gone, or be another topic now."""
        place = self.old.place(partition, self.count, self.former.facts)
        known = self.former.last_commit_record(partition).topic_ids
        ids = {topic: known.get(topic, now) for topic, now in place.topic_ids.items() if topic in self.request.closed}
        return msgspec.structs.replace(place, topic_ids=place.topic_ids | ids)

    def _facts(self) -> Mapping[str, TopicFacts]:
        """Return the facts of the new topics; create statehold's own if the first input changes."""
        if self.moves:
            names, kind = self.names, self.new.kind
            side = filter(names.follows_input, output_topics(kind, names))
            wanted = dict.fromkeys((*names.inputs, *side), self.count)
            control = self.old.admin.describe([self.old.names.control])[self.old.names.control] is not None
            replication = self.former.facts[self.old.names.changelog].replication
            ServiceTopics(self.old.settings, names).make(replication, wanted, control=control)
        facts = self.new.facts()
        wrong = [f"{topic} has {fact.partitions}" for topic, fact in facts.items() if fact.partitions != self.count]
        if wrong:
            raise ToolRefused(f"{', '.join(wrong)} partitions, not {self.count}. The state was not replaced")
        if self.moves:
            self._require_unused()
        return facts

    def _require_unused(self) -> None:
        """:raises ToolRefused: the changelog to which the state moves holds a state."""
        if self.new.commit_record(0) is not None:
            raise ToolRefused(
                f"{self.names.changelog}[0]: move the state there: the partition already holds a commit record, "
                f"perhaps of `statehold topics create`. The state was not replaced. Next: delete "
                f"{self.names.changelog} and {self.names.snapshot}, then run the command again"
            )

    def _adoption(self, partition: int, lineage: str, facts: Mapping[str, TopicFacts]) -> Adoption:
        found, inputs = self._read(partition)
        last, place = found.commit_record, self.new.place(partition, self.count, facts)
        if last.n != self.commit_records[partition].n:
            raise ToolRefused(f"{self.old.names.changelog}[{partition}] has grown. The state was not replaced")
        old = None if self.moves else last
        adoption = self.new.adoption(place, lineage, old, inputs, found.state, last, last.n + 1)
        self.result.partitions[partition].full = adoption.base.offset if adoption.base else None
        return msgspec.structs.replace(
            adoption,
            effects=last.effects,
            former_inputs=self.before,
            source=last if self.moves else None,
            paused=last.paused,
            control=control_position(self.new.admin, self.names, partition) if self.moves else None,
        )

    def _done(self) -> ChangedInputs:
        self.result.old_digest, self.result.digest = map(digest.show, self._sums)
        return self.result


def _resolved(state: State) -> int:
    """Return the number of resolved dead letters that the state lists."""
    table = by_default_name(state.tables).get(RESOLVED)
    return 0 if table is None else len(table.stored)


def _joins(state: State) -> list[JoinCount]:
    found = []
    for name, table in state.tables.items():
        if isinstance(table, JoinTable) and table.stored:
            left = sum(1 for row in table.stored if row[1] == "left")
            found.append(JoinCount(table=name, left=left, right=len(table.stored) - left))
    return found
