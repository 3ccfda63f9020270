"""Which types a class gives to the parameters of a generic base class, as a type checker reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin


def type_arguments(kind: type, wanted: type) -> tuple[Any, ...]:
    """Return the types that a class gives to the parameters of its base class `wanted`, in their order.

    What no base gives stays a type variable of the class. A base with arguments counts before one without.
    """
    if kind is wanted:
        return _parameters(wanted)
    bases = vars(kind).get("__orig_bases__", kind.__bases__)
    found: list[Any] = []
    for base in sorted(bases, key=lambda base: get_origin(base) is None):
        origin = get_origin(base) or base
        if not (isinstance(origin, type) and issubclass(origin, wanted)):
            continue
        given = dict(zip(_parameters(origin), get_args(base), strict=False))
        types = [_replaced(each, given) for each in type_arguments(origin, wanted)]
        if not get_args(base):
            types = list(map(with_default, types))
        found = [
            other if isinstance(each, TypeVar) else each for each, other in zip(found or types, types, strict=True)
        ]
    return tuple(found)


def open_variables(kind: Any) -> tuple[Any, ...]:
    """Return the type variables of a type such as `K` or `tuple[K, int]`."""
    if isinstance(kind, TypeVar):
        return (kind,)
    return _parameters(kind) if get_origin(kind) is not None else ()


def with_default(kind: Any) -> Any:
    """Return a type with the defaults of its type variables (PEP 696); those without one stay."""
    return _replaced(kind, {each: default_of(each) for each in open_variables(kind)})


def default_of(variable: Any) -> Any:
    """Return the default of a type variable; without one itself."""
    has_default = getattr(variable, "has_default", None)
    return variable.__default__ if has_default is not None and has_default() else variable


def _replaced(kind: Any, given: Mapping[Any, Any]) -> Any:
    """Return a type with the types that are given for its variables."""
    if isinstance(kind, TypeVar):
        return given.get(kind, kind)
    variables = open_variables(kind)
    return kind[tuple(given.get(each, each) for each in variables)] if variables else kind


def _parameters(kind: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = getattr(kind, "__parameters__", ())
    return found
