"""Operations: command line, metrics, tools. Programs that embed a service import from here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statehold.ops.http.asgi import OpsApplication
    from statehold.ops.http.key_lookup import Elsewhere, Finder, Found, NotFound, NotLive

__all__ = ["Elsewhere", "Finder", "Found", "NotFound", "NotLive", "OpsApplication"]


def __getattr__(name: str) -> Any:
    """Import each name at its first use, because a command of the command line needs no server."""
    if name not in __all__:
        raise AttributeError(f"module 'statehold.ops' has no attribute {name!r}")
    home = "asgi" if name == "OpsApplication" else "key_lookup"
    found = globals()[name] = getattr(importlib.import_module(f"statehold.ops.http.{home}"), name)
    return found
