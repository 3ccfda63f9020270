"""A side effect as a commit record stores it: encode a call, find its function again, run it."""

from __future__ import annotations

import importlib
import inspect
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

import msgspec

from statehold.api.handler import EffectKey, Handler
from statehold.errors import UsageError
from statehold.snapshot.format.records import Effect

#: approximate bytes of an effect in a commit record without its texts and arguments
_FRAME: Final = 40

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def note(
    handler: Handler[Any],
    function: Callable[..., object],
    key: EffectKey,
    args: tuple[Any, ...],
    record_key: bytes | None = None,
    time: int = 0,
) -> Effect:
    """Return the effect as a commit record stores it; key and time are those of its record.

    :raises UsageError: the function cannot be found after a restart, or an argument is not plain data.
    """
    name = _name(handler, function)
    try:
        return Effect(name, *key, _encode(args), zlib.crc32(record_key or b""), time)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"effect {name}: encode the arguments: they must be plain data (msgpack): {error}") from error


def positional(function: Callable[..., object], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return an effect's arguments in the order of the function's parameters, because a commit record has no names.

    :raises UsageError: the function does not take them, so each call after the commit would fail.
    """
    function, owner = unbound(function)
    first = (*owner, "key")
    signature, least, most = parameters(function)
    if not keywords and least <= len(first) + len(args) <= most:
        return args
    called = getattr(function, "__qualname__", repr(function))
    try:
        call = signature.bind(*first, *args, **keywords)
    except TypeError as error:
        given = ", ".join(("key", *map(repr, args), *(f"{name}={value!r}" for name, value in keywords.items())))
        raise UsageError(
            f"effect {called!r} takes {signature}, and would be called with ({given:.200}): {error}"
        ) from error
    if not keywords:
        return args
    call.apply_defaults()
    if named := ", ".join(name for name in keywords if name in call.kwargs):
        raise UsageError(
            f"effect {called!r} takes {named} by name only, and a commit record stores no names. Next: let it take "
            f"{named} by position"
        )
    return call.args[len(first) :]


def unbound(function: Callable[..., object]) -> tuple[Callable[..., object], tuple[Any, ...]]:
    """Return the function of a method, and its first argument if it has one."""
    plain = getattr(function, "__func__", None)
    return (function, ()) if plain is None else (plain, (function.__self__,))  # type: ignore[attr-defined]


@lru_cache(maxsize=256)
def parameters(function: Callable[..., object]) -> tuple[inspect.Signature, int, float]:
    """Return the signature of a function, and the least and the most arguments that it takes by position.

    A function that is written in C may show no signature; every call by position fits it.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return inspect.signature(_any), 0, math.inf
    found = signature.parameters.values()
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in found):
        return signature, 1, 0  # no call by position fits it
    by_position = [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    least = sum(each.default is each.empty for each in by_position)
    return signature, least, math.inf if any(each.kind is each.VAR_POSITIONAL for each in found) else len(by_position)


def _any(*args: Any) -> None:
    """Takes any arguments by position."""


def _name(handler: Handler[Any], function: Callable[..., object]) -> str:
    qualified: str = getattr(function, "__qualname__", repr(function))
    own = getattr(function, "__self__", None) is handler
    name = f".{function.__name__}" if own else f"{getattr(function, '__module__', '')}:{qualified}"
    if name in handler.renamed_effects:
        raise UsageError(
            f"effect {qualified!r}: {type(handler).__name__}.renamed_effects gives the pending calls of {name!r} to "
            f"another function. Next: give the new one a name that no release has used"
        )
    if own:
        return name
    try:
        if find(handler, name) is function:
            return name
    except (ImportError, LookupError, AttributeError):
        pass
    raise UsageError(
        f"effect {qualified!r} could not be found after a restart. Next: pass a method of the handler or a function of "
        f"a module"
    )


def find(handler: Handler[Any], name: str) -> Callable[..., object]:
    """Return the function of this name. The name may come from Kafka, so it imports no module of a stranger's choice.

    :raises LookupError: its module is neither imported already nor in a package of the handler's classes.
    :raises AttributeError: the module or the handler has no such function.
    """
    module, _, path = name.partition(":")
    found: Any = handler if name.startswith(".") else _module(handler, module)
    for attribute in (path or name[1:]).split("."):
        if attribute.startswith("__"):
            raise AttributeError(f"effect {name!r}: {attribute} is not a function for effects")
        found = getattr(found, attribute)
    function: Callable[..., object] = found
    return function


def _module(handler: Handler[Any], name: str) -> ModuleType:
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    if name.partition(".")[0] not in {kind.__module__.partition(".")[0] for kind in type(handler).__mro__}:
        raise LookupError(f"module {name!r} of an effect is not imported: import it where the handler is defined")
    return importlib.import_module(name)


def resolve(handler: Handler[Any], name: str) -> Callable[..., object]:
    """Return the function that takes the calls of this stored name: another one if it was renamed. Raises as `find`."""
    renamed = handler.renamed_effects.get(name)
    if renamed is None:
        return find(handler, name)
    own = getattr(renamed, "__name__", "")
    if any(vars(kind).get(own) is renamed for kind in type(handler).__mro__):
        method: Callable[..., object] = getattr(handler, own)
        return method
    return renamed


def call(handler: Handler[Any], effect: Effect) -> object:
    """Call the effect's function once. Returns what it returns: an `async def` has not run until its coroutine has."""
    return resolve(handler, effect.function)(effect.key, *arguments(effect))


def arguments(effect: Effect) -> list[Any]:
    return _decode(effect.arguments)


def weight(effects: Iterable[Effect]) -> int:
    """Return the approximate bytes that the effects use in a commit record."""
    return sum(len(effect.arguments) + len(effect.function) + len(effect.topic) + _FRAME for effect in effects)
