"""Features that a handler class may not have together, or not with the settings of its service."""

from __future__ import annotations

from typing import Any

from statehold.declared.attributes import sinks_of
from statehold.declared.policies import delays, sends_dead_letters
from statehold.errors import UsageError
from statehold.handler import Handler
from statehold.reference import references


def check_combinations(kind: type[Handler[Any]], delta_interval: float | str) -> None:
    """Before a service or a driver starts; looks at the policies in any case.

    :raises UsageError: two of them contradict one another. Raises as `policies` and `references` do.
    """
    letters, versions = sends_dead_letters(kind), references(kind)
    if delta_interval == "off":
        _check_without_deltas(kind, letters=letters, versions=bool(versions))
    if not sinks_of(kind):
        return
    if versions:
        raise UsageError(
            f"{kind.__name__} has both sinks and reference data: which version a transaction saw is not kept beside "
            f"the rows, so that handling it again might see a newer one. Do the one in a service behind the other"
        )
    if delays(kind):
        raise UsageError(
            f"{kind.__name__}.on_failure has retry_later, and the handler has sinks: what a transaction took from a "
            f"retry topic is not kept beside the rows. Use retry(...) or dead_letter()"
        )


def _check_without_deltas(kind: type[Handler[Any]], *, letters: bool, versions: bool) -> None:
    if letters:
        raise UsageError(
            f"{kind.__name__}.on_failure sends dead letters, and snapshot.delta_interval is off: a delta keeps which "
            f"record was buried, so that a replay need not decide again. Set it to a time, such as 10s"
        )
    if versions:
        raise UsageError(
            f"{kind.__name__} has reference data, and snapshot.delta_interval is off: a transaction that takes a new "
            f"version carries a delta, so that a replay sees one version. Set it to a time, such as 10s"
        )
