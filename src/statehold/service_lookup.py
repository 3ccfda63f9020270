"""Finds a service in the user's code by `module:attribute`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from statehold.errors import StartError, StateholdError, UsageError, class_and_text

if TYPE_CHECKING:
    from statehold.service import Service


def misspelled(target: str) -> str:
    """Return why a text is not `module:attribute`; '' if it is."""
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        return f"{target!r}: write module:service, such as order_totals.app:service"
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        return f"{name!r} is a path; write the module's name: {dotted}:{attribute}"
    return ""


def find(target: str) -> Service:
    """Import the module of `module:attribute`, with the current directory on the path; return its Service.

    :raises UsageError: there is no such module or attribute, or it is no Service.
    :raises StartError: the module fails on import.
    """
    if finding := misspelled(target):
        raise UsageError(finding)
    from statehold.service import Service

    name, _, attribute = target.partition(":")
    module = _imported(name)
    found: object = getattr(module, attribute, None)
    if not isinstance(found, Service):
        services = [key for key, value in vars(module).items() if isinstance(value, Service)]
        raise UsageError(_no_service(module, name, attribute, services))
    return found


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise StartError(f"{name} cannot be imported: {_where(error)}{error}. Install what it needs") from error
        raise UsageError(
            f"there is no module {error.name!r} in {here} or among the installed ones; run the command in "
            f"the directory that holds {name.partition('.')[0]}, or set PYTHONPATH"
        ) from error
    except StateholdError:
        raise
    except Exception as error:
        raise StartError(f"{name} cannot be imported: {_where(error)}{class_and_text(error)}") from error


def _where(error: BaseException) -> str:
    """Return `file:line: ` of the user's own line: the innermost outside the import machinery."""
    if isinstance(error, SyntaxError):
        return ""  # its text names both
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f"{frames[-1].filename}:{frames[-1].lineno}: " if len(frames) > 1 else ""


def _no_service(module: ModuleType, name: str, attribute: str, services: Sequence[str]) -> str:
    advice = (
        f"its services: {', '.join(services)}"
        if services
        else 'write: service = Service("name", input=..., handler=...)'
    )
    if not hasattr(module, attribute):
        return f"module {name} has no {attribute!r}; {advice}"
    return f"{name}:{attribute} is a {type(getattr(module, attribute)).__name__}, not a Service; {advice}"
