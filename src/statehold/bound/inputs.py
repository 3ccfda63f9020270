"""The inputs that a handler class declares: by `on`, or the single one of `Handler[...]` with on_record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from statehold.api.handler import DECLARATION, Handler, HandlerFactory, InputDeclaration
from statehold.api.record import MergedMessage, Message, Record, input_of_all, key_bytes, plain
from statehold.api.values import serde
from statehold.api.values.key_types import PLAIN, read_key_type
from statehold.api.values.keys import KeySerde, OfKeys, UnreadableKey, same_bytes
from statehold.bound.rekey import rekeys_of
from statehold.bound.serdes import input_type, key_type
from statehold.bound.topics import class_of
from statehold.common.class_body import once_per_class
from statehold.common.names import Names
from statehold.errors import UsageError


class InputMethod(NamedTuple):
    """The method that handles the records of one input."""

    name: str
    #: type of the values, or a serde
    value: Any
    #: type of the keys, or a serde; None: bytes, or no key
    key: Any = None


@once_per_class
def methods(kind: type[Handler[Any]]) -> dict[str, InputMethod]:
    """Return the methods that `on` declares, by topic, in the order of their declaration, base classes first.

    Of a `Rekey` the topic is only the end of its name (`methods_of`).

    :raises UsageError: two methods handle one topic, or one has the name of a method of Handler.
    """
    found: dict[str, InputMethod] = {}
    for cls in reversed(kind.__mro__):
        for name, value in vars(cls).items():
            declaration: InputDeclaration | None = getattr(value, DECLARATION, None) if callable(value) else None
            if declaration is None:
                continue
            if hasattr(Handler, name):
                raise UsageError(
                    f"{kind.__name__}.{name} handles the input {declaration.topic!r} and replaces Handler.{name}, "
                    f"which statehold or the handler calls. Next: give the method another name"
                )
            other = found.get(declaration.topic)
            if other is not None and other.name != name:
                raise UsageError(
                    f"{kind.__name__}: {other.name} and {name} both handle the input {declaration.topic!r}. Next: let "
                    f"one method handle it"
                )
            found[declaration.topic] = InputMethod(name, declaration.value, declaration.key)
    return found


def methods_of(kind: type[Handler[Any]], names: Names | None) -> dict[str, InputMethod]:
    """Return what `methods` returns, by the full names of the topics. Without names by what the class has."""
    declared = methods(kind)
    return declared if names is None else {names.full(topic): method for topic, method in declared.items()}


def plain_inputs(kind: type[Handler[Any]]) -> list[str]:
    """Return the topics that `on` names, without those of a `Rekey`."""
    own = {rekey.suffix for rekey in rekeys_of(kind).values()}
    return [topic for topic in methods(kind) if topic not in own]


def value_types(kind: type[Handler[Any]], names: Names) -> dict[str, Any]:
    """Return the type or serde of each input's values."""
    declared = methods_of(kind, names)
    return {topic: declared[topic].value if topic in declared else input_type(kind) for topic in names.inputs}


def input_names(kind: type[Handler[Any]], names: Names | None) -> list[str]:
    """Return the inputs in their order. Without names those that the class has, or one without a name."""
    return list(names.inputs) if names is not None else list(methods(kind)) or [""]


def key_types(handler: HandlerFactory | Handler[Any, Any], names: Names | None) -> dict[str, Any]:
    """Return the type or serde of the keys of those inputs that declare one, by the full names of the topics.

    `handler`: as a service has it, or one that it has made.
    """
    kind = type(handler) if isinstance(handler, Handler) else class_of(handler)
    own, declared = key_type(kind), methods_of(kind, names)
    if own is None:
        own = getattr(handler, "_service_key", None)
    found = {
        topic: declared[topic].key if topic in declared and declared[topic].key is not None else own
        for topic in input_names(kind, names)
    }
    return {topic: key for topic, key in found.items() if not same_bytes(key)}


def check_inputs(kind: type[Handler[Any]], inputs: Sequence[str]) -> None:
    """Check that the handler class has a method for each input, and for each `Rekey`, and none for another topic.

    `inputs`: without the topics of a `Rekey`.

    :raises UsageError:
    """
    declared = methods(kind)
    for name, rekey in rekeys_of(kind).items():
        if rekey.suffix not in declared:
            raise UsageError(
                f"{kind.__name__}.{name} is a Rekey whose records no method handles. Next: decorate one with "
                f"@on({name})"
            )
    single = kind.on_record is not Handler.on_record or kind.on_batch is not Handler.on_batch
    if declared and single:
        raise UsageError(
            f"{kind.__name__} has methods for inputs ({', '.join(declared)}) and on_record or on_batch, and statehold "
            f"cannot know which of them to call. Next: move on_record into a method with @on(TOPIC, value=TYPE)"
        )
    if not declared and len(inputs) > 1:
        raise UsageError(
            f"{kind.__name__} has no method for each of the inputs {', '.join(inputs)}. Next: decorate one method for "
            f"each with @on(TOPIC, value=TYPE)"
        )
    named = set(plain_inputs(kind))
    if declared and named != set(inputs):
        unknown, missing = sorted(named - set(inputs)), sorted(set(inputs) - named)
        found = [f"the service does not read {', '.join(unknown)}"] if unknown else []
        found += [f"{kind.__name__} has no method for {', '.join(missing)}"] if missing else []
        raise UsageError(f"{' and '.join(found)}. Next: give Service(inputs=[...]) and @on(...) the same topics")


class InputMethods:
    """The methods and decoders of one handler; used by the partition's thread."""

    def __init__(self, handler: Handler[Any], names: Sequence[str], declared: dict[str, InputMethod]) -> None:
        """`names`: the service's inputs, in their order. `declared`: what `methods` returns for the handler."""
        inputs = [topic for topic in names if topic in declared] or list(declared)
        self._decoders: list[Callable[[Any], Any]] = [
            serde.for_messages(declared[topic].value).decode for topic in inputs
        ]
        self._methods: list[Callable[[Record[Any]], None]] = [
            getattr(handler, declared[topic].name) for topic in inputs
        ]

    def decode(self, message: Message) -> Any:
        """Return the value of a record. Raises what the decoder of its input raises."""
        return self._decoders[_input_of(message)](message.value())

    def decode_all(self, messages: Sequence[Message], given: Sequence[Any]) -> list[Any]:
        """Return the values of records, `given` as bytes. Raises as `decode`."""
        decoders = self._decoders
        if (only := input_of_all(messages)) is not None:
            return list(map(decoders[only], given))
        return [decoders[message.input](data) for message, data in zip(messages, given, strict=True)]  # type: ignore[attr-defined]

    def calls(self, messages: Sequence[Message]) -> Iterable[Callable[[Record[Any]], None]]:
        """Return the method of each record's input."""
        methods = self._methods
        if (only := input_of_all(messages)) is not None:
            return repeat(methods[only])
        return [methods[message.input] for message in messages]  # type: ignore[attr-defined]


@once_per_class
def declares_keys(kind: type[Handler[Any]]) -> bool:
    """Return whether the keys of an input have a declared type."""
    return key_type(kind) is not None or not all(same_bytes(each.key) for each in methods(kind).values())


class InputKeys:
    """The decoders of the keys of one partition's inputs (rule B1); used by the partition's thread."""

    def __init__(self, inputs: Sequence[str], declared: dict[str, Any]) -> None:
        """`inputs`: what `input_names` returns for the handler. `declared`: what `key_types` returns."""
        #: None: the keys of an input are their bytes
        self._serdes = [KeySerde(declared[topic], topic) if topic in declared else None for topic in inputs]
        self._decoders = [_unchanged if each is None else each.decode for each in self._serdes]

    def decode(self, message: Message) -> Any:
        """Return the key of a record. Raises what the decoder of its input raises."""
        return self._decoders[_input_of(message)](message.key())

    def given(self, messages: Sequence[Message]) -> list[bytes | None]:
        """Return the bytes of the keys of records."""
        sent = plain(messages) if messages else messages
        return list(map(type(sent[0]).key, sent)) if sent else []

    def decode_all(self, messages: Sequence[Message], given: Sequence[bytes | None]) -> list[Any]:
        """Return the keys of records, `given` as bytes. Raises as `decode`."""
        if not messages:
            return []
        if (only := input_of_all(messages)) is not None:
            keys = self._serdes[only]
            return list(given) if keys is None else keys.decode_all(given)
        decoders = self._decoders
        return [decoders[message.input](data) for message, data in zip(messages, given, strict=True)]  # type: ignore[attr-defined]


class RecordKeys:
    """The bytes that a key of a table has as the key of a record. Any thread may use it."""

    def __init__(self, inputs: Sequence[str], declared: dict[str, Any]) -> None:
        """The arguments are those of `InputKeys`."""
        self._writers = [_writer(declared.get(topic), topic) for topic in inputs]

    def of(self, key: Any) -> bytes | None:
        """Return the bytes; None: no input has such keys, or the inputs write it in different ways."""
        found = {data for write in self._writers if (data := write(key)) is not None}
        return found.pop() if len(found) == 1 else None


def _writer(kind: Any, topic: str) -> Callable[[Any], bytes | None]:
    """Return what writes a key as those of an input; `kind` None: they are not declared."""
    if kind is None:
        return _as_given
    own = read_key_type(kind).kind
    if isinstance(own, OfKeys):
        return lambda key: None  # its serde may have to ask the registry
    keys, is_text = KeySerde(kind, topic), isinstance(own, type) and own in PLAIN

    def write(key: Any) -> bytes | None:
        try:
            return keys.encode(key)
        except UsageError:
            given = _as_given(key) if is_text else None
        try:  # a table may have the text of a record's key, or its number
            return given if given is not None and keys.decode(given) is not None else None
        except UnreadableKey:
            return None

    return write


def _as_given(key: Any) -> bytes | None:
    return key_bytes(key) if isinstance(key, str | bytes | int) else None


def _unchanged(key: Any) -> Any:
    return key


def _input_of(message: Message) -> int:
    # With one input it is the message that the client has made.
    return message.input if isinstance(message, MergedMessage) else 0
