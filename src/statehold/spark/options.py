"""The options of a read: which service, which table, which point in time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from statehold.config.loading import load
from statehold.config.settings import Settings
from statehold.errors import UsageError

Mode = Literal["state", "points", "changes", "commits", "inputs", "outputs", "dead_letters"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
#: most partitions that a list may name, so that a mistyped range fills no memory
_LAST_PARTITION: Final = 999_999
_SWITCH: Final = {"true": True, "false": False}


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user gives to `options`; every value is a text."""

    #: `MODULE:SERVICE`, or the names of a service without its code
    service: str = ""
    name: str = ""
    input: str = ""
    #: the directory of a backup, which is read instead of Kafka
    backup: str = ""
    mode: Mode = "state"
    table: str = ""
    #: latest, a time, an input offset or one for each partition
    at: str = "latest"
    #: changes after this point; the oldest one that is stored
    since: str = ""
    partitions: str = ""
    verify: bool = True
    #: whether changes have their value before; by default a batch does, a stream does not
    before: bool | None = None
    #: take filters of partition and key from Spark, whose session must allow it
    pushdown: bool = False
    config: str = ""
    secrets_dir: str = ""
    profile: str = ""
    #: settings, whose names have a dot
    settings: dict[str, str] = {}

    def load(self) -> Settings:
        """Load the settings as commands do. :raises SettingsError: unknown keys and bad values."""
        return load(
            Path(self.config) if self.config else None,
            self.settings,
            secrets_dir=Path(self.secrets_dir) if self.secrets_dir else None,
            profile=self.profile or None,
        )

    def partitions_of(self) -> list[int]:
        """Return the partitions of a list such as 0,3-5; none without a list. :raises UsageError: it is no list."""
        found: list[int] = []
        for piece in self.partitions.split(",") if self.partitions else ():
            low, dash, high = piece.strip().partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()):
                raise UsageError(f"option partitions={self.partitions!r}: write numbers and ranges, such as 0,3-5")
            first, last = int(low), int(high if dash else low)
            if not first <= last <= _LAST_PARTITION:
                raise UsageError(
                    f"option partitions={self.partitions!r}: the lower number comes first, and {_LAST_PARTITION} is "
                    f"the highest"
                )
            found += range(first, last + 1)
        return list(dict.fromkeys(found))


def parse(given: Mapping[str, str]) -> SourceOptions:
    """Return the options. :raises UsageError: one is unknown, or its value is; the text names those that exist."""
    known = {field.name: field for field in msgspec.structs.fields(SourceOptions) if field.name != "settings"}
    values: dict[str, object] = {}
    settings: dict[str, str] = {}
    for key, value in given.items():
        if "." in key:
            settings[key] = value
        elif key not in known:
            raise UsageError(f"there is no option {key!r}; there are {', '.join(known)}, and settings by their names")
        elif key in ("verify", "before", "pushdown"):
            if value.lower() not in _SWITCH:
                raise UsageError(f"option {key}={value!r}: write true or false")
            values[key] = _SWITCH[value.lower()]
        else:
            values[key] = value
    found = msgspec.structs.replace(SourceOptions(settings=settings), **values)
    if found.mode not in MODES:
        raise UsageError(f"option mode={found.mode!r}: choose one of {', '.join(MODES)}")
    _require_combination(found, values)
    return found


def _require_combination(found: SourceOptions, values: Mapping[str, object]) -> None:
    named = bool(found.name or found.input)
    if (
        (found.service and named)
        or bool(found.name) != bool(found.input)
        or not (found.service or named or found.backup)
    ):
        raise UsageError(
            "name the service: option service=MODULE:SERVICE, such as order_totals.app:service, or the options name "
            "and input, such as order-totals and order-totals.events"
        )
    if found.backup and found.mode in ("outputs", "dead_letters"):
        raise UsageError(f"mode={found.mode}: a backup holds state and inputs, no {found.mode.replace('_', ' ')}")
    needs_table = found.mode in ("state", "changes")
    if needs_table and not found.table:
        raise UsageError(f"mode={found.mode}: name a table with the option table")
    unused = {
        "table": not needs_table,
        "at": found.mode not in ("state", "points", "changes"),
        "since": found.mode != "changes",
        "before": found.mode != "changes",
        "verify": not needs_table,
    }
    for name, useless in unused.items():
        if useless and name in values:
            raise UsageError(f"mode={found.mode} has no option {name}; leave it out")
