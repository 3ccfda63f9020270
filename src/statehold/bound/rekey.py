"""Streams by another key: a handler's sends to the partition that owns the key, through a topic of the service."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from statehold.api.declaration import options_of
from statehold.api.handler import Handler
from statehold.api.output import Headers, Rekey, RekeyOptions, rekey_suffix
from statehold.api.record import MergedMessage, Message, Record
from statehold.bound.output import ORIGIN_HEADER, PartitionOutput
from statehold.common.class_body import class_attributes, once_per_class
from statehold.common.names import MOST_INPUTS, Names
from statehold.errors import RekeyLoop, UsageError
from statehold.messages.request import REQUEST_HEADER, RETURN_HEADER
from statehold.messages.sent import Sent

K = TypeVar("K")
V = TypeVar("V")

#: Header of a record that a record of a `Rekey` has sent: by how many sends it has come, little endian. Without it one.
HOPS_HEADER: Final = "sh-hops"
_HOPS: Final = struct.Struct("<H")
#: more hops than the header has room for
_MOST: Final = 65_535
#: headers that say something about the record in progress, so one that it sends does not inherit them
_OWN: Final = frozenset((ORIGIN_HEADER, HOPS_HEADER, REQUEST_HEADER, RETURN_HEADER))


class InProgress(Protocol):
    """Has the record that is being handled; None: none is."""

    @property
    def record(self) -> Record[Any] | None: ...


class Sends:
    """What the sends of one partition share: the record being handled, and how far records have come."""

    def __init__(self, handling: InProgress, names: Names | None, most_hops: int) -> None:
        """`names` None: no record has come by a send."""
        self.handling, self._most_hops = handling, most_hops
        self._topics = frozenset(names.rekeys if names is not None else ())
        #: the other inputs, by index
        self.others = frozenset(
            index for index, topic in enumerate(names.inputs if names is not None else ()) if topic not in self._topics
        )
        #: the most hops of a record that was sent since `take`
        self.hops = 0

    def hops_after(self, record: Record[Any]) -> int:
        """Return by how many sends a record comes that this one sends. :raises RekeyLoop: they are too many."""
        message, hops = record.message, 1
        if not isinstance(message, MergedMessage) or message.input not in self.others:
            hops += hops_of(message) if message.topic() in self._topics else 0
        if hops > self._most_hops:
            raise RekeyLoop(
                f"the record would have come by {hops} sends of a Rekey, and rekey.max_hops is {self._most_hops}: the "
                f"handler may send to itself without an end. Nothing was sent. Next: let a method of a Rekey send only "
                f"what ends; or raise rekey.max_hops, if you mean this number of steps"
            )
        self.hops = max(self.hops, hops)
        return hops

    def take(self) -> int:
        """Return the most hops of a record since the last call; 0 without one."""
        taken, self.hops = self.hops, 0
        return taken


class PartitionRekey(Rekey[K, V]):
    """The stream of one partition; `bind` makes it from the prototype of a declaration."""

    __slots__ = ("_encode_key", "_keys", "_sends", "name", "output", "value_type")

    def __init__(self, declaration: Rekey[K, V]) -> None:
        options: RekeyOptions = options_of(declaration)
        self.name, self.value_type, self._keys = options.name, options.value_type, options.key
        self._encode_key = options.key.encode
        self.output = PartitionOutput(options.output)
        self._sends: Sends

    @property
    def suffix(self) -> str:
        """The end of its topic's name."""
        return rekey_suffix(self.name)

    def bind(
        self, sent: list[Sent], topic: str, partitions: int, sends: Sends, *, checked: bool
    ) -> PartitionRekey[K, V]:
        """Return the stream of one partition, which appends its records to `sent`. See `PartitionOutput.bind`."""
        bound = copy.copy(self)
        bound.output = self.output.bind(sent, partitions, checked=checked)
        bound.output.topic = topic
        bound._sends = sends
        return bound

    def send(self, value: V, key: K, headers: Headers | None = None, timestamp: int = 0) -> None:
        sends = self._sends
        record = sends.handling.record
        try:
            data = self._encode_key(key)
        except UsageError as error:
            raise UsageError(f"Rekey({self.name!r}): {error}") from error.__cause__
        if record is None:
            raise UsageError(f"Rekey({self.name!r}): no record is being handled, so nothing would be sent with it")
        if headers is not None:
            headers = [header for header in headers if header[0] not in _OWN]
        message, may_have_hops = record.message, True
        if isinstance(message, MergedMessage):
            may_have_hops = message.input not in sends.others
            message = message.message  # because each method of a MergedMessage is one more call of Python
        if (may_have_hops or sends.hops == 0) and (hops := sends.hops_after(record)) > 1:
            headers = [*(headers or ()), (HOPS_HEADER, _HOPS.pack(min(hops, _MOST)))]
        now = message.timestamp()[1]
        self.output.send(value, data, headers, -1, timestamp or (now if now > 0 else 0))

    def key(self, record: Record[Any, Any]) -> K:
        key: K = self._keys.decode(record.raw_key)
        return key


def bind_rekeys(
    handler: Handler[Any],
    names: Names | None,
    sent: list[Sent],
    output_partitions: Callable[[str], int],
    sends: Sends,
    *,
    checked: bool,
) -> tuple[PartitionOutput[Any], ...]:
    """Set the attributes of a handler to its streams, as `bound.handler.bind` does. Return their outputs."""
    outputs: list[PartitionOutput[Any]] = []
    for attribute, each in rekeys_of(type(handler)).items():
        topic = each.suffix if names is None else names.full(each.suffix)
        partitions = output_partitions(topic) if each.output.partitioner else 0
        bound = each.bind(sent, topic, partitions, sends, checked=checked)
        setattr(handler, attribute, bound)
        outputs.append(bound.output)
    return tuple(outputs)


def hops_of(message: Message) -> int:
    """Return by how many sends a record of a `Rekey` has come; 1 if its header is not one of statehold's."""
    for name, data in reversed(message.headers() or ()):
        if name == HOPS_HEADER and data is not None and len(data) == _HOPS.size:
            return max(1, int(_HOPS.unpack(data)[0]))
    return 1


@once_per_class
def rekeys_of(kind: type[Handler[Any]]) -> dict[str, PartitionRekey[Any, Any]]:
    """Return the streams by another key that a handler class declares, by attribute name, base classes first.

    :raises UsageError: two have one name.
    """
    found = {name: PartitionRekey(each) for name, each in class_attributes(kind, Rekey).items()}
    named: dict[str, str] = {}
    for attribute, each in found.items():
        if (other := named.setdefault(each.name, attribute)) != attribute:
            raise UsageError(f"{kind.__name__}: {other} and {attribute} are both a Rekey({each.name!r})")
    return found


def with_rekeys(names: Names, kind: type[Handler[Any]]) -> Names:
    """Return the names of a service whose inputs are also the topics of each `Rekey`, after its own.

    :raises UsageError: these are too many.
    """
    own = [names.full(each.suffix) for each in rekeys_of(kind).values()]
    if not own:
        return names
    if len(names.inputs) + len(own) > MOST_INPUTS:
        raise UsageError(f"{kind.__name__}: its inputs and its Rekeys are more than {MOST_INPUTS} topics")
    return replace(names, others=(*names.others, *(topic for topic in own if topic not in names.others)))
