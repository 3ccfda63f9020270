"""Rejects handler features that exclude each other or a setting of the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statehold.api.handler import Handler
from statehold.bound.attributes import sinks_of, tables_and_outputs
from statehold.bound.inputs import check_inputs, methods
from statehold.bound.policies import delays, sends_dead_letters
from statehold.bound.reference import references
from statehold.config.settings import Settings
from statehold.disk.kinds.placed import placed_on_disk
from statehold.errors import UsageError


def check_combinations(kind: type[Handler[Any]], delta_interval: float | str, inputs: Sequence[str]) -> None:
    """Check the handler class before a service or a driver with these inputs starts.

    :raises UsageError: two features exclude each other. Also raises the errors of `policies` and `references`.
    """
    _check_hooks(kind)
    check_inputs(kind, inputs)
    _check_outputs(kind)
    dead_letters, versions = sends_dead_letters(kind), references(kind)
    if delta_interval == "off":
        _check_without_deltas(kind, dead_letters=dead_letters, versions=bool(versions))
    if not sinks_of(kind):
        return
    if versions:
        raise UsageError(
            f"{kind.__name__} has both sinks and reference data: the database does not store which version a "
            f"transaction read, so a replay might read a newer one. Next: move one of them to a second service"
        )
    if delays(kind):
        raise UsageError(
            f"{kind.__name__}.on_failure has retry_later, and the handler has sinks: the database does not store which "
            f"retries a transaction processed. Next: use retry(...) or dead_letter()"
        )


def check_storage(kind: type[Handler[Any]], settings: Settings) -> None:
    """:raises UsageError: the handler has tables on disk, and a setting excludes them."""
    on_disk = placed_on_disk(kind, settings.state.storage)
    if not on_disk:
        return
    shown = f"{kind.__name__} has tables on disk ({', '.join(sorted(name for name in on_disk if '.' not in name))})"
    if settings.snapshot.delta_interval == "off":
        raise UsageError(
            f"{shown}, and snapshot.delta_interval is off: a start from the files reads the deltas after them. Next: "
            f"set snapshot.delta_interval to commit"
        )


def _check_hooks(kind: type[Handler[Any]]) -> None:
    if kind.on_record is Handler.on_record and kind.on_batch is Handler.on_batch and not methods(kind):
        raise UsageError(f"{kind.__name__} has neither on_record nor on_batch: define one of them")


def _check_outputs(kind: type[Handler[Any]]) -> None:
    types: dict[str, tuple[str, Any]] = {}
    for name, output in tables_and_outputs(kind)[1].items():
        other, known = types.setdefault(output.topic, (name, output.value_type))
        if known != output.value_type:
            raise UsageError(
                f"{kind.__name__}: the outputs {other!r} and {name!r} write different types to the topic "
                f"{output.topic!r}. Declare one output with a union type, or use two topics"
            )


def _check_without_deltas(kind: type[Handler[Any]], *, dead_letters: bool, versions: bool) -> None:
    if dead_letters:
        raise UsageError(
            f"{kind.__name__}.on_failure sends dead letters, and snapshot.delta_interval is off: a replay needs the "
            f"delta that stores which record was dead-lettered. Next: set snapshot.delta_interval to a time, such as "
            f"10s"
        )
    if versions:
        raise UsageError(
            f"{kind.__name__} has reference data, and snapshot.delta_interval is off: a replay needs the delta of each "
            f"transaction that switches to a new version. Next: set snapshot.delta_interval to a time, such as 10s"
        )
