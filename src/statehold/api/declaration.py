"""The base of all declarations: it keeps what was declared, and has nothing that a handler may call."""

from __future__ import annotations

from typing import Any

from statehold.errors import UsageError


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
