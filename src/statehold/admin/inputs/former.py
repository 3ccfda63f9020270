"""Finds the state whose inputs a command changes: the code names the new inputs, the commit record the former ones."""

from __future__ import annotations

from collections.abc import Mapping

from statehold.admin.inputs.requested import InputRequest
from statehold.admin.state.stopped_service import StoppedService
from statehold.api.handler import HandlerFactory
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import ToolRefused, TopicMissing
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.snapshot.format.records import CommitRecord


class FormerService:
    """The stopped service with its former inputs. Every method blocks."""

    def __init__(
        self, settings: Settings, names: Names, handler: HandlerFactory, request: InputRequest, tool: str
    ) -> None:
        """`names`: with the code's inputs.

        :raises ToolRefused: there is no state, or it has the code's inputs already.
        :raises UsageError: the options do not lead from its inputs to the code's.
        """
        self.now = names
        self.stopped, first = _find(settings, names, handler, request, tool)
        #: in their order
        self.inputs = self.stopped.names.inputs
        self.partitions = first.partitions
        if self.inputs == names.inputs:
            self.stopped.close()
            raise ToolRefused(
                f"the state of {names.group!r} already has the inputs {', '.join(names.inputs)} (state generation "
                f"{first.lineage}, transaction {first.n} by {first.writer.instance}). Nothing was changed"
            )
        request.check(self.inputs, names.inputs)
        self.facts = self._facts(request)
        self._known: dict[int, CommitRecord] = {0: first}

    def _facts(self, request: InputRequest) -> Mapping[str, TopicFacts]:
        """Return the facts of the state's topics; an input that ends may be missing.

        :raises TopicMissing: another one is missing.
        """
        names = self.stopped.names
        found = self.stopped.admin.describe([*names.inputs, names.changelog, names.snapshot])
        missing = [topic for topic, fact in found.items() if fact is None and topic not in request.removed]
        if missing:
            raise TopicMissing(f"{', '.join(missing)}: read the state: the topic does not exist. Nothing was changed")
        return {topic: fact for topic, fact in found.items() if fact is not None}

    def last_commit_record(self, partition: int) -> CommitRecord:
        """Return the last commit record of a partition. :raises ToolRefused: it does not exist."""
        if partition not in self._known:
            found = self.stopped.commit_record(partition)
            if found is None:
                raise ToolRefused(
                    f"{self.stopped.names.changelog}[{partition}]: read the state: there is no commit record. Nothing "
                    f"was changed"
                )
            self._known[partition] = found
        return self._known[partition]

    def fence(self) -> None:
        """Fence every partition, and forget the commit records that were read before."""
        self.stopped.fence(range(self.partitions))
        self._known.clear()

    def close(self) -> None:
        self.stopped.close()


def _find(
    settings: Settings, names: Names, handler: HandlerFactory, request: InputRequest, tool: str
) -> tuple[StoppedService, CommitRecord]:
    """Return the stopped service under the first input that its state has, and its first partition's commit record.

    The changelog has the name of the first input. If that changes, an option or the code names the former one, too.
    """
    firsts = dict.fromkeys((*request.closed, *names.inputs[1:], names.input))
    admin = Admin(settings, names.group)
    topics = {first: Names(names.service, first, names.namespace).changelog for first in firsts}
    there = admin.describe(list(topics.values()))
    moved = ""
    found: list[tuple[StoppedService, CommitRecord]] = []
    for first in firsts:
        if there[topics[first]] is None:
            continue
        stopped = StoppedService(settings, Names(names.service, first, names.namespace), handler, tool)
        record = stopped.commit_record(0)
        if record is None or record.service != names.group:
            continue
        inputs = record.inputs or (first,)
        if record.moved:
            moved = moved or f"{topics[first]} is closed: the state has moved to the input {record.moved}. "
            continue
        former = Names(names.service, first, names.namespace, inputs[1:])
        found.append((StoppedService(settings, former, handler, tool), record))
    fitting = [each for each in found if request.fits(each[0].names.inputs, names.inputs)]
    if found:
        return fitting[0] if fitting else found[-1]
    raise ToolRefused(
        f"{', '.join(topics.values())}: find the state of {names.group!r}: there is no commit record. {moved}Nothing "
        f"was changed. Next: name the former inputs with --rename OLD=NEW or --remove OLD"
    )
