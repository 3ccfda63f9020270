"""The base of all declarations: it keeps what was declared, and has nothing that a handler may call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statehold.common.type_arguments import default_of
from statehold.errors import UsageError


class WithDefaults:
    """A generic class whose last parameter is the type of keys: bytes or None where it is left out.

    A type variable has a default from Python 3.13 on only; type checkers know it from typing_extensions.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, given: Any) -> Any:
            arguments = given if isinstance(given, tuple) else (given,)
            left_out = cls.__parameters__[len(arguments) :]
            if WithDefaults in cls.__bases__:
                defaults = [bytes | None for _ in left_out]
            else:  # a class of the user, whose type variables may have defaults of their own
                defaults = [found for each in left_out if (found := default_of(each)) is not each]
            return super().__class_getitem__((*arguments, *defaults))


class Declaration:
    """An attribute of a handler class that each partition replaces by an object of its own, which has the behaviour."""

    #: what was declared; the engine reads it with `options_of`
    _options: Any

    def _unbound(self) -> UsageError:
        return UsageError(
            f"this {type(self).__name__} is a declaration: use it as self.<name> in a handler that a service or Driver "
            f"runs"
        )


def options_of(declaration: Declaration) -> Any:
    """Return what was declared, such as `TableOptions`."""
    return declaration._options
