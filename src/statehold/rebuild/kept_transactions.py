"""Reads the service's transactions across state replacements that moved no position."""

from __future__ import annotations

from statehold.errors import ToolRefused
from statehold.rehearsal.new_code import LiveTransaction
from statehold.shadow.handled import HandledTransactions
from statehold.snapshot.format.records import CommitRecord, StateReplacement

#: the tool that replaces states by rebuilt ones; the name is stored
TOOL = "rebuild"


class KeptTransactions(HandledTransactions):
    """What the service has committed: a rebuild handles nothing beyond it."""

    #: what tools did to the state meanwhile
    notes: list[str]

    @property
    def lineage(self) -> str:
        """Return the state generation of the last transaction; '' if none was handled."""
        return self._lineage or ""

    def read(self, end: int, through: int) -> list[tuple[CommitRecord, LiveTransaction]]:
        """Return the next transactions up to number `through`; nothing if the changelog has no more before `end`.

        :raises ToolRefused: a tool moved a position. :raises OutOfRange: retention has deleted records.
        """
        self._hold(end, through)
        while self._held and (replacement := self._held[0].replacement) is not None:
            self._cross(replacement)
            self.handled(self._held[0].commit_record)
            self._held = []
            self._hold(end, through)
        records = [each.commit_record for each in self._held]
        given = self._given(records) if records else []
        self._held = []
        return list(zip(records, given, strict=True))

    def skip_to(self, n: int) -> None:
        """Continue before the first transaction that is left, which has this number."""
        self.n, self._lineage, self._offset, self._held = n - 1, None, -1, []

    def begin_at(self, position: int) -> None:
        """Continue at this position of the only input: the records before it have been handled."""
        self.positions = {**self.positions, self._place.input: position}

    def _cross(self, replacement: StateReplacement) -> None:
        inputs = self._place.names.inputs
        before, after = replacement.old_positions, replacement.positions
        by = f"{replacement.tool} by {replacement.who} ({replacement.why})"
        moved = any(before.get(topic) != after.get(topic) for topic in inputs)
        if moved or replacement.old_partitions != replacement.partitions:
            raise ToolRefused(
                f"{self._place.input}[{self._place.partition}]: rebuild across transaction {replacement.n}: {by} moved "
                f"keys or positions, so the records before it do not lead to the state after it. Nothing was changed. "
                f"Next: begin behind it, such as --from n:{replacement.n}"
            )
        if replacement.tool.partition(" ")[0] == TOOL:
            self.notes.append(f"transaction {replacement.n}: {by} replaced the state already; it is rebuilt again")
        else:
            self.notes.append(
                f"transaction {replacement.n}: {by} replaced the state; the rebuilt one is without that change"
            )
