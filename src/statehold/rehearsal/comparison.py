"""Compares the new code's results of one transaction with what the live service committed, and fills the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, NamedTuple

import msgspec

from statehold.admin.inspection.output_records import OutputRecord
from statehold.api.values.serde import Serde
from statehold.bound.policies import raised
from statehold.common.names import Names
from statehold.rehearsal.failing import FailureEntry, entries
from statehold.rehearsal.fields import WHOLE, IgnoredFields, changed
from statehold.rehearsal.live_outputs import MatchedOutputs, OutputPair, SentOutput, match
from statehold.rehearsal.new_code import LiveTransaction, NewResults, coordinates_text
from statehold.rehearsal.report import DifferenceExample, How, Kind, RehearsedPartition
from statehold.rehearsal.saved_results import ResultFiles, RowChanges, row_changes
from statehold.rehearsal.table_comparison import Judged, Key, TableComparison
from statehold.snapshot.format.chain_check import Increment
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Effect
from statehold.snapshot.inspect import typed
from statehold.state import digest
from statehold.state.partition_table import Changes
from statehold.state.state import State

#: stands for the outputs of topics that the new code does not declare, whose names no record has
UNDECLARED = "(topics that this code does not declare)"
#: stands for all outputs where only their number is known
NUMBER = "(number of outputs)"


class LiveResults(NamedTuple):
    """What the live service committed in a transaction."""

    increment: Increment
    sent: Sequence[SentOutput]
    #: the outputs may be incomplete: not readable here, without origin, or deleted by retention
    outputs_unknown: bool

    @property
    def commit_record(self) -> CommitRecord:
        return self.increment.commit_record


@dataclass(slots=True)
class TransactionDifferences:
    """The differences of one transaction, before the report has them."""

    #: by topic: outputs that were compared
    outputs: Counter[str] = field(default_factory=Counter)
    matched: MatchedOutputs | None = None
    fields: dict[OutputPair, list[str]] = field(default_factory=dict)
    unknown_outputs: int = 0
    #: the topics have outputs of another transaction of the same number
    foreign: bool = False
    #: live minus new, where only the number of outputs is known
    number: int = 0
    undeclared: int = 0
    failures: Counter[FailureEntry] = field(default_factory=Counter)
    entries: int = 0
    effects: list[tuple[Effect | None, Effect | None]] = field(default_factory=list)
    #: None: no delta, or one that is equal byte by byte
    judged: Judged | None = None
    #: the writes that are equal to the delta byte by byte
    plain: Sequence[Changes] = ()

    def kinds(self) -> set[tuple[Kind, str]]:
        """Return what new differences are of: kind, and topic or table."""
        found: set[tuple[Kind, str]] = set()
        found |= {("outputs", NUMBER)} if self.number else set()
        found |= {("outputs", UNDECLARED)} if self.undeclared else set()
        found |= {("dead letters", "dead letters")} if self.failures else set()
        found |= {("effects", "effects")} if self.effects else set()
        found |= {("table", table) for table, _ in self.judged.born} if self.judged else set()
        return found


class TransactionComparison:
    """Used for one partition."""

    def __init__(
        self,
        place: Place,
        state: State,
        outputs: Mapping[str, Serde[Any]],
        report: RehearsedPartition,
        ignored: IgnoredFields,
        examples: int,
        files: ResultFiles,
    ) -> None:
        """`outputs`: the serde of each topic that the new code declares."""
        self._place, self._state, self._outputs = place, state, outputs
        self._report, self._ignored, self._most, self._files = report, ignored, examples, files
        self.tables = TableComparison(state, ignored)
        self._shown: Counter[tuple[Kind, str]] = Counter()
        #: keys of the effects that the last commit record names; None at the beginning
        self._pending: set[tuple[str, int, int, int]] | None = None
        #: a note says that the topics have other outputs
        self._foreign = False
        #: coordinates of the first record since the last delta
        self._since_delta = ""
        #: the first transaction since the last delta whose digest differs, where no delta names a key
        self._suspect: tuple[int, str] | None = None

    # What differs, without a change of anything

    def examine(self, live: LiveResults, results: NewResults, frozen: Sequence[Changes]) -> TransactionDifferences:
        """Return the differences. `frozen`: the writes that are not part of the state yet."""
        found = TransactionDifferences()
        self._compare_outputs(live, results, found)
        if self._pending is not None:
            new = [each for each in live.commit_record.effects if each.key not in self._pending]
            found.effects = _effects(new, results.effects)
        if live.commit_record.delta:
            delta = self.tables.delta(live.increment.parts)
            if self.tables.plainly_equal(frozen, delta):
                found.plain = frozen
            else:
                found.judged = self.tables.judge(frozen, delta)
        return found

    def wants_example(self, found: TransactionDifferences) -> bool:
        """Return whether a difference should be shown, so that its record has to be found."""
        kinds = found.kinds()
        if found.matched is not None:
            kinds |= {("outputs", self._topic(pair, found)) for pair in found.matched.differ}
        return any(self._shown[kind] < self._most for kind in kinds)

    def _compare_outputs(self, live: LiveResults, results: NewResults, found: TransactionDifferences) -> None:
        names, expected = self._place.names, live.commit_record.outputs
        found.foreign = _has_foreign(live.sent, expected)
        if found.foreign or (len(live.sent) != expected and live.outputs_unknown):
            found.unknown_outputs, found.number = len(results.sent), expected - len(results.sent)
            return
        found.undeclared = max(0, expected - len(live.sent))
        if not live.sent and not results.sent:
            return
        before, after = [each.record for each in live.sent], list(map(OutputRecord.sent, results.sent))
        if before == after and not any(_is_failure(each.topic, names) for each in after):
            found.outputs.update(each.topic for each in after)
            return
        mine, theirs = [[_is_failure(each.topic, names) for each in side] for side in (before, after)]
        if any(mine) or any(theirs):
            was, now = (
                entries(compress(*side), names, self._place.partition) for side in ((before, mine), (after, theirs))
            )
            found.entries = max(was.total(), now.total())
            found.failures = Counter(was)
            found.failures.subtract(now)
            found.failures = Counter({entry: count for entry, count in found.failures.items() if count})
        self._match_outputs(before, after, mine, theirs, found)

    def _match_outputs(
        self,
        before: Sequence[OutputRecord],
        after: Sequence[OutputRecord],
        mine: Sequence[bool],
        theirs: Sequence[bool],
        found: TransactionDifferences,
    ) -> None:
        matched = match(before, after)
        differ: list[OutputPair] = []
        for pair in matched.differ:
            if (pair.live >= 0 and mine[pair.live]) or (pair.new >= 0 and theirs[pair.new]):
                continue  # a dead letter or a retry
            if pair.how == "changed":
                topic = before[pair.live].topic
                fields = self._ignored.left(topic, self._fields(before[pair.live], after[pair.new]))
                if not fields:
                    found.outputs[topic] += 1
                    continue
                found.fields[pair] = fields
            differ.append(pair)
            found.outputs[(before[pair.live] if pair.live >= 0 else after[pair.new]).topic] += 1
        found.outputs.update(before[pair.live].topic for pair in matched.equal if not mine[pair.live])
        found.matched = MatchedOutputs(differ, matched.equal)
        self._sides = before, after

    def _fields(self, one: OutputRecord, other: OutputRecord) -> list[str]:
        fields = changed(self._plain(one), self._plain(other)) if one.value != other.value else []
        if one.headers != other.headers:
            fields.append("headers")
        return fields or [WHOLE]

    def _plain(self, record: OutputRecord) -> Any:
        """Return the value as JSON: as it is, or as the new code's serde reads it, or its text."""
        if record.value is None:
            return None
        try:
            return msgspec.json.decode(record.value)
        except (msgspec.DecodeError, ValueError):
            shown = typed.message(self._outputs.get(record.topic), record.value)
            return typed.text(record.value) if isinstance(shown, dict) and "undecodable" in shown else shown

    def _topic(self, pair: OutputPair, found: TransactionDifferences) -> str:
        before, after = self._sides
        return (before[pair.live] if pair.live >= 0 else after[pair.new]).topic

    # The report

    def take(
        self, found: TransactionDifferences, live: LiveResults, given: LiveTransaction, results: NewResults
    ) -> None:
        """Add the differences of a transaction, which is part of the state now."""
        record, report = live.commit_record, self._report
        span = _span([coordinates_text(each) for each in (*given.messages[:1], *given.messages[-1:], *given.pinned)])
        if found.foreign and not self._foreign:
            self._foreign = True
            report.notes.append(
                f"the output topics have outputs of another transaction {record.n}, of before the state was restored: "
                f"of such transactions only the number of outputs is compared"
            )
        self._take_outputs(found, results, span)
        self._take_failures(found, results, span)
        self._take_effects(found, results)
        if results.rows or self._files.against is not None:
            self._take_rows(record.n, row_changes(results.rows), span)
        self._pending = {each.key for each in record.effects}
        self._since_delta = self._since_delta or span
        if record.delta:
            self._take_keys(found, results, span)
            self._since_delta = ""
        self._check_digest(record, span)
        report.records += len(given.messages)
        report.transactions += 1
        report.to_n, report.end = record.n, record.position(self._place.input)

    def finish(self, report: RehearsedPartition) -> None:
        """Add to the report the keys that differ now, and the fields in which they do. Changes nothing else."""
        tables = self.tables
        for name, count in tables.compared.items():
            report.of("table", name).compared += count
        for key, live in tables.differ.items():
            new = self._state.tables[key[0]].stored.get(key[1])
            if (difference := tables.difference(key, live, new)) is not None:
                report.of("table", key[0]).add(difference.how, difference.fields)
        for name, count in tables.passing().items():
            report.of("table", name).passing += count
        if self._suspect is not None:
            n, span = self._suspect
            report.of("state").changed = 1
            report.notes.append(
                f"from transaction {n} on ({span}) the state differs by its digest, and no delta names a key"
            )

    def _take_outputs(self, found: TransactionDifferences, results: NewResults, span: str) -> None:
        report = self._report
        for topic, count in found.outputs.items():
            report.of("outputs", topic).compared += count
        if found.unknown_outputs:
            report.of("outputs", NUMBER).not_compared += found.unknown_outputs
        if found.number:
            how: How = "missing" if found.number > 0 else "added"
            self._count("outputs", NUMBER, how, (), abs(found.number))
            self._show("outputs", NUMBER, how, span, None, [], None, None)
        if found.undeclared:
            self._count("outputs", UNDECLARED, "missing", (), found.undeclared)
            self._show("outputs", UNDECLARED, "missing", span, None, [], None, None)
        if found.matched is None:
            return
        before, after = self._sides
        for pair in found.matched.differ:
            live, new = (before[pair.live] if pair.live >= 0 else None), (after[pair.new] if pair.new >= 0 else None)
            one = live or new
            assert one is not None
            fields = found.fields.get(pair, [])
            self._count("outputs", one.topic, pair.how, fields)
            if self._shown["outputs", one.topic] < self._most:
                where = _record_of(pair, found.matched.equal, results, span)
                key = None if one.key is None else typed.text(one.key)
                sides = [None if each is None else self._plain(each) for each in (live, new)]
                self._show("outputs", one.topic, pair.how, where, key, fields, *sides)

    def _take_failures(self, found: TransactionDifferences, results: NewResults, span: str) -> None:
        if found.entries:
            self._report.of("dead letters").compared += found.entries
        for entry, count in found.failures.items():
            how: How = "missing" if count > 0 else "added"
            self._count("dead letters", "dead letters", how, (), abs(count))
            where = f"{entry.topic}[{self._place.partition}]@{entry.offset}"
            shown = {"what": entry.what, "error": entry.error}
            self._show(
                "dead letters", "dead letters", how, where, None, [], *((shown, None) if count > 0 else (None, shown))
            )
        for failure in results.failed:
            name = type(raised(failure.error)).__name__
            self._report.of("failures", name).compared += 1
            self._count("failures", name, "added", ())
            self._show("failures", name, "added", failure.record, None, [], None, str(failure.error))

    def _take_rows(self, n: int, rows: RowChanges, span: str) -> None:
        """Compare the sink rows with those of the run before, because no topic has them."""
        files = self._files
        if files.save is not None:
            files.save.add(self._place.partition, n, rows)
        earlier = files.against.rows(n) if files.against is not None else None
        for table in dict.fromkeys((*rows, *(earlier or ()))):
            new, old = rows.get(table, {}), earlier.get(table, {}) if earlier is not None else {}
            found = self._report.of("sink", table)
            if earlier is None:
                found.not_compared += len(new)
                continue
            found.compared += len(new.keys() | old.keys())
            for key in dict.fromkeys((*old, *new)):
                self._take_row(table, key, old, new, span)

    def _take_row(self, table: str, key: str, old: Mapping[str, Any], new: Mapping[str, Any], span: str) -> None:
        if key in old and key in new:
            fields = self._ignored.left(table, changed(old[key], new[key]))
            if not fields:
                return
            how: How = "changed"
        else:
            how, fields = ("missing", []) if key in old else ("added", [])
        self._count("sink", table, how, fields)
        self._show("sink", table, how, span, msgspec.json.decode(key), fields, old.get(key), new.get(key))

    def _take_effects(self, found: TransactionDifferences, results: NewResults) -> None:
        if results.effects or found.effects:
            self._report.of("effects").compared += max(len(results.effects), len(found.effects))
        for live, new in found.effects:
            one = live or new
            assert one is not None
            how: How = "added" if live is None else "missing" if new is None else "changed"
            self._count("effects", "effects", how, ())
            where = f"{one.topic}[{one.partition}]@{one.offset}"
            self._show("effects", "effects", how, where, None, [], _call(live), _call(new))

    def _take_keys(self, found: TransactionDifferences, results: NewResults, span: str) -> None:
        judged, tables = found.judged, self.tables
        if judged is None:
            tables.count(found.plain)
            return
        for key in judged.born:
            if self._shown["table", key[0]] >= self._most:
                continue
            new = self._state.tables[key[0]].stored.get(key[1])
            if (difference := tables.difference(key, judged.differ[key], new)) is not None:
                since = _span([self._since_delta.partition(" to ")[0], span.rpartition(" to ")[2]])
                where = _writers(key, found, results) or since
                shown = difference.fields, difference.live, difference.new
                self._show("table", key[0], difference.how, where, typed.key(key[1]), *shown)
        tables.take(judged)

    def _check_digest(self, record: CommitRecord, span: str) -> None:
        """Find differences that no delta names."""
        tables = self.tables
        if tables.differ or tables.other_bytes or digest.to_bytes(self._state.digest) == record.digest:
            if self._suspect is not None:  # later records have covered it, or a delta names it
                if not tables.differ:
                    self._report.of("state").passing += 1
                self._suspect = None
            if not tables.differ and not tables.other_bytes:
                tables.settle()
            return
        self._suspect = self._suspect or (record.n, span)

    def _count(self, kind: Kind, name: str, how: How, fields: Sequence[str], count: int = 1) -> None:
        self._report.of(kind, name).add(how, fields, count)

    def _show(
        self, kind: Kind, name: str, how: How, record: str, key: Any, fields: list[str], live: Any, new: Any
    ) -> None:
        if self._shown[kind, name] < self._most:
            self._shown[kind, name] += 1
            self._report.examples.append(DifferenceExample(kind, name, how, record, key, fields, live, new))


def _has_foreign(sent: Sequence[SentOutput], expected: int) -> bool:
    """Return whether some are not of the transaction, which has numbered its `expected` outputs from 0."""
    ordinals = {each.ordinal for each in sent}
    return len(ordinals) < len(sent) or max(ordinals, default=-1) >= expected


def _is_failure(topic: str, names: Names) -> bool:
    return topic == names.dead or names.is_for_retries(topic)


def _effects(live: Sequence[Effect], new: Sequence[Effect]) -> list[tuple[Effect | None, Effect | None]]:
    before, after = ({each.key: each for each in side} for side in (live, new))
    return [
        (before.get(key), after.get(key))
        for key in dict.fromkeys(chain(before, after))
        if _call(before.get(key)) != _call(after.get(key))
    ]


def _call(effect: Effect | None) -> Any:
    if effect is None:
        return None
    return {"function": effect.function, "arguments": typed.builtins(msgspec.msgpack.decode(effect.arguments))}


def _record_of(pair: OutputPair, equal: Sequence[OutputPair], results: NewResults, span: str) -> str:
    """Return the record of an output; of one that only the live service sent, the records that it may be of."""
    by, records = results.sent_by, results.records
    if not records:
        return span
    if pair.new >= 0:
        return records[by[pair.new]]
    before = max((each for each in equal if each.live < pair.live), default=None)
    after = min((each for each in equal if each.live > pair.live), default=None)
    low, high = by[before.new] if before is not None else 0, by[after.new] if after is not None else len(records) - 1
    return _span([records[low], records[high]])


def _writers(key: Key, found: TransactionDifferences, results: NewResults) -> str:
    """Return the first and last record that may have made a key differ: a delta holds the last value only.

    If an output of the transaction differs, this is the first record from it on that wrote the key.
    """
    written = results.wrote.get(key)
    if not written:
        return ""
    pairs = found.matched.differ if found.matched is not None else []
    since = min((results.sent_by[pair.new] for pair in pairs if pair.new >= 0), default=-1)
    if since >= 0:
        return results.records[next((number for number in written if number >= since), written[-1])]
    return _span([results.records[written[0]], results.records[written[-1]]])


def _span(coordinates: Sequence[str]) -> str:
    """Return the first and last of some records."""
    if not coordinates:
        return ""
    first, last = coordinates[0], coordinates[-1]
    return first if first == last else f"{first} to {last}"
