"""The types of a state's tables in its commit records: checked at a takeover, and renewed as tables are written.

A commit record carries one description for each of the user's tables that has keys, from format 5 on
(`statehold.state.types`). Without it a renamed field with a default would read as that default in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce

import msgspec

from statehold.errors import DamagedIncrement, TableTypeChanged
from statehold.snapshot.format import frame
from statehold.snapshot.format.records import CommitRecord
from statehold.state.types.compare import TypeChange, Use, all_optional, table_changes, table_merged
from statehold.state.types.description import BadDescription, TableType, of_text, to_text

#: differences that an error shows
_SHOWN = 5


def changes(commit_record: CommitRecord, declared: Mapping[str, TableType]) -> dict[str, list[TypeChange]]:
    """Return the differences between recorded and declared types, of tables whose descriptions differ.

    :raises BadDescription: statehold did not write a recorded one.
    """
    found = {}
    for table, text in commit_record.types.items():
        if table in declared and text != to_text(declared[table]):
            found[table] = table_changes(of_text(text), declared[table])
    return found


def check(commit_record: CommitRecord, declared: Mapping[str, TableType], topic: str) -> None:
    """Require that this code reads every stored value and key as the code that wrote it did. `topic`: the input.

    :raises TableTypeChanged: it does not. :raises DamagedIncrement: statehold did not write a recorded type.
    """
    position = commit_record.position(topic)
    try:
        found = changes(commit_record, declared)
    except BadDescription as error:
        raise DamagedIncrement(
            f"the last commit record describes the type of a table as statehold does not: {error}. Nothing was "
            f"changed. Next: check who writes to the changelog",
            topic=topic,
            partition=commit_record.partition,
            position=position,
        ) from error
    for table, differences in found.items():
        if not all(each.compatible for each in differences):
            raise TableTypeChanged(
                _said(table, differences, commit_record, max(declared[table].values, default=1)),
                topic=topic,
                partition=commit_record.partition,
                position=position,
            )


def _said(table: str, differences: list[TypeChange], commit_record: CommitRecord, version: int) -> str:
    broken = [each for each in differences if not each.compatible]
    # a new field may be another name of one that is gone
    about = [*broken, *(each for each in differences if each.compatible and each.born)]
    writer, more = commit_record.writer, len(about) - _SHOWN
    shown = "; ".join(f"{each.text:.200}" for each in about[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    code = f" (code {writer.code})" if writer.code else ""
    uses = {each.use for each in broken}
    if Use.KEY in uses:
        ways = (
            "or give the keys their old type: keys of another type need a new table, which `statehold state migrate "
            "--handlers` can fill from the old one"
        )
    elif Use.UPCAST in uses:
        ways = "or let the upcaster read what is stored"
    else:
        ways = (
            f"{_renaming(about)}or declare version={version + 1} and upcasters={{{version}: ...}}, or write the table "
            f"again with `statehold state migrate`"
        )
    return (
        f"table {table!r} holds keys or values of another type than this code declares: {shown}. The state has "
        f"{commit_record.keys} keys. {writer.instance}{code} wrote the last commit record. Nothing was changed. Next: "
        f"run that code again, {ways}"
    )


def _renaming(about: list[TypeChange]) -> str:
    """Return the way of a renamed field, if one may be: by name if there is one old and one new name."""
    gone, born = [each.gone for each in about if each.gone], [each.born for each in about if each.born]
    if len(gone) == len(born) == 1:
        return f"or, if {gone[0]} was renamed, keep its stored name: {born[0]} = msgspec.field(name={gone[0]!r}), "
    return "or keep the stored name of a renamed field with msgspec.field(name=...), " if gone and born else ""


def of_state(
    commit_record: CommitRecord, declared: Mapping[str, TableType], used: Iterable[str], topic: str
) -> dict[str, str]:
    """Return the types of a state that a tool writes in the newest format: it has keys in the tables `used`.

    `commit_record` has the types with which its values were written. Raises as `check`.
    """
    check(commit_record, declared, topic)
    used = tuple(used)
    after = RecordedTypes(declared, commit_record, used).after(commit_record, frame.NEWEST, used, ())
    return {table: text for table, text in after.items() if table in used}


def joined(recorded: Iterable[Mapping[str, str]], declared: Mapping[str, TableType]) -> dict[str, str]:
    """Return the types of a state that has the values of several, all of which this code reads."""
    texts: dict[str, dict[str, None]] = {}
    for types in recorded:
        for table, text in types.items():
            texts.setdefault(table, {})[text] = None
    return {table: _joined(list(each), declared.get(table)) for table, each in texts.items()}


def _joined(texts: list[str], declared: TableType | None) -> str:
    if len(texts) == 1 or declared is None:
        return texts[0]
    recorded = [of_text(text) for text in texts]
    if not declared.values:  # retired: the rows may have any recorded version
        values = {version: each for one in recorded for version, each in one.values.items()}
        declared = msgspec.structs.replace(declared, values=values)
    return to_text(reduce(lambda joint, old: table_merged(old, joint), recorded, declared))


class RecordedTypes:
    """What the commit records of one partition carry, from its takeover on. Used by the partition's thread."""

    def __init__(self, declared: Mapping[str, TableType], commit_record: CommitRecord, used: Iterable[str]) -> None:
        """`used`: the tables that have keys."""
        used = frozenset(used)
        #: the tables whose types are recorded
        self.tables = frozenset(declared)
        #: tables that had keys at the takeover, and whose type no commit record carries
        self.unknown: set[str] = set()
        #: by table; a commit record names the fields that stored values may be without, which a declaration does not
        self._texts: dict[str, str] = {}
        #: whether a type is to be recorded that the record at the takeover does not have
        self.news = False
        for table, types in declared.items():
            text = to_text(types)
            known = commit_record.types.get(table)
            if known is None and table in used and types.values:
                self.unknown.add(table)
                text = to_text(all_optional(types))
                self.news = True
            elif known is not None and known != text:
                text = to_text(table_merged(of_text(known), types))
                self.news |= known != text
            self._texts[table] = text

    def after(
        self, commit_record: CommitRecord, format: int, written: Collection[str], emptied: Collection[str]
    ) -> dict[str, str]:
        """Return the types of the next commit record, which writes these tables in this format."""
        known = commit_record.types
        if format < frame.TYPED:
            return known
        fresh = {
            table: self._texts[table]
            for table in (*written, *self.unknown.difference(known))
            if table in self._texts and known.get(table) != self._texts[table]
        }
        if not fresh and known.keys().isdisjoint(emptied):
            return known
        return {table: text for table, text in {**known, **fresh}.items() if table not in emptied}
