"""The change of inputs that an operator requests, compared with the state's inputs and the code's. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from statehold.admin.state.position_args import milliseconds
from statehold.common.input_changes import difference
from statehold.errors import UsageError

_EXAMPLE: Final = "quotes=beginning, quotes=end, quotes=2026-11-21T17:30:00Z, or quotes:0=120,quotes:1=end"

#: the key of a position for all partitions
_ALL: Final = -1


class StartPosition(msgspec.Struct, frozen=True):
    """Where the service starts to read an added input: `beginning`, `end`, an offset, or milliseconds since 1970."""

    kind: str
    number: int = 0


class InputRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the options request; `check` compares it with what there is."""

    #: added input -> partition, or -1 for all, -> its position
    added: Mapping[str, Mapping[int, StartPosition]] = MappingProxyType({})
    removed: tuple[str, ...] = ()
    #: the former topic -> the new one
    renamed: Mapping[str, str] = MappingProxyType({})
    reorder: bool = False
    #: unread records of removed inputs are never processed
    discard: bool = False

    @property
    def closed(self) -> tuple[str, ...]:
        """The inputs that the service reads no more."""
        return (*self.removed, *self.renamed)

    def new_name(self, topic: str) -> str:
        """Return the input that continues a former one: itself, or the one that replaces it."""
        return self.renamed.get(topic, topic)

    def fits(self, before: Sequence[str], after: Sequence[str]) -> bool:
        """Return whether the options lead from one to the other, whatever the order."""
        kept = [topic for topic in before if topic not in self.closed]
        return set(self.closed) <= set(before) and {*kept, *self.added, *self.renamed.values()} == set(after)

    def check(self, before: Sequence[str], after: Sequence[str]) -> None:
        """Require that the options lead from the state's inputs to the code's.

        :raises UsageError: an option is missing, or one names something else; the text names the right ones.
        """
        there, reads = f"the state has {', '.join(before)}", f"the code reads {', '.join(after)}"
        for topic in self.closed:
            if topic not in before:
                raise UsageError(f"{topic} is no input of the state: {there}, {reads}")
            if topic in after:
                raise UsageError(
                    f"{topic} is to be removed, and {reads}. Next: take it out of Service(inputs=[...]) first"
                )
        for topic in (*self.added, *self.renamed.values()):
            if topic in before:
                raise UsageError(f"{topic} is an input of the state already: {there}")
            if topic not in after:
                raise UsageError(f"{topic} is to be added, and {reads}. Next: add it to Service(inputs=[...]) first")
        continued = [self.new_name(topic) for topic in before if topic not in self.removed]
        found = difference(continued, [topic for topic in after if topic not in self.added])
        if found.added or found.removed:
            raise UsageError(f"{there}, {reads}. Next: confirm each difference: {found.options}{found.hint}")
        if found.reordered and not self.reorder:
            raise UsageError(f"{there}, {reads}, in another order. Next: confirm that with --reorder")
        if self.reorder and not found.reordered:
            raise UsageError(f"{there}, {reads}: the order is the same. Next: leave out --reorder")


def request_of(
    added: Sequence[str],
    removed: Sequence[str],
    renamed: Sequence[str],
    *,
    reorder: bool = False,
    discard: bool = False,
) -> InputRequest:
    """Parse the options. :raises UsageError: one is not valid, or two name the same topic."""
    starts: dict[str, dict[int, StartPosition]] = {}
    for text in added:
        for piece in text.split(","):
            topic, partition, start = _start(piece.strip())
            if partition in starts.setdefault(topic, {}):
                raise UsageError(f"--add {text}: it names {topic} twice")
            starts[topic][partition] = start
    pairs: dict[str, str] = {}
    for text in renamed:
        old, equals, new = text.partition("=")
        if not (old and equals and new) or old == new:
            raise UsageError(f"--rename {text}: write OLD=NEW, such as prices=quotes")
        if old in pairs:
            raise UsageError(f"--rename {text}: {old} gets two new names")
        pairs[old] = new
    named = [*starts, *removed, *pairs, *pairs.values()]
    if twice := sorted({topic for topic in named if named.count(topic) > 1}):
        raise UsageError(f"{twice[0]}: two options name this topic. Next: use one of --add, --remove and --rename")
    return InputRequest(added=starts, removed=tuple(removed), renamed=pairs, reorder=reorder, discard=discard)


def start_in(starts: Mapping[int, StartPosition], topic: str, partition: int, partitions: int) -> StartPosition:
    """Return the position of an added input for one partition.

    :raises UsageError: the option names neither all partitions nor each of them.
    """
    if starts.keys() != {_ALL} and starts.keys() != set(range(partitions)):
        raise UsageError(
            f"--add {topic}: name one position for all partitions, or one for each of the partitions 0 to "
            f"{partitions - 1}, such as {topic}:0=120"
        )
    return starts[_ALL] if _ALL in starts else starts[partition]


def _start(text: str) -> tuple[str, int, StartPosition]:
    where, equals, place = text.partition("=")
    topic, colon, number = where.partition(":")
    if not (topic and equals and place) or (colon and not number.isdecimal()):
        raise UsageError(f"--add {text}: write {_EXAMPLE}")
    if place in ("beginning", "end"):
        start = StartPosition(place)
    elif place.isdecimal():
        start = StartPosition("offset", int(place))
    else:
        start = StartPosition("time", milliseconds(place, f"--add {topic}"))
    return topic, int(number) if colon else _ALL, start
