"""Generates docs/reference/settings.md from the declared settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from statehold.config import client
from statehold.config.common.option import Option, options_of
from statehold.config.librdkafka.client_keys import ALLOWED
from statehold.config.librdkafka.locked_keys import ALIASES, LOCKED, OWNED
from statehold.config.sections.service import ServiceSettings
from statehold.config.sections.tree import sections
from statehold.config.settings import Settings
from statehold.config.sources import PREFIX, RESERVED, profile_path

_INTRODUCTION = """\
# Settings

This file is generated: `python -m script.generate`. A test compares the two.

A setting is written in one of five places; the first one in this list that has it wins:

1. the command line: `--set commit.interval=50ms`
2. the environment: `STATEHOLD_COMMIT__INTERVAL=50ms` (two underscores between section and name)
3. the secrets directory: one file per setting, named like the variable or like the dotted key, as
   `kafka.security.sasl_password`
4. a TOML file: `[commit]` and `interval = "50ms"`
5. a shipped profile (`development` or `production`, at the end of this page), then the default

In Python: `Settings(commit=CommitSettings(interval=0.05))`, or `load(path, overrides, env, secrets_dir)` of
`statehold.config`.

An unknown key or a bad value stops the start; the error names the key, where it was written, the value and
what is allowed. Passwords and keys never show in errors, logs or `repr`. Durations are seconds or have a unit
(`100ms`, `5s`, `10m`, `1h`, `1d`); sizes are bytes or carry a unit (`256MB`, `64KiB`).
"""


def document() -> str:
    """The whole page as Markdown."""
    blocks = [_INTRODUCTION, _reserved(), *(_section(name, kind) for name, kind in sections().items())]
    blocks += [_extra(), _locked(), _clients(), _profiles()]
    return "\n".join(blocks)


def _reserved() -> str:
    names = ", ".join(f"`{name}{'...' if name.endswith('_') else ''}`" for name in RESERVED)
    return f"These environment variables belong to scripts and tools and are no settings: {names}.\n"


def _section(name: str, kind: type[object]) -> str:
    rows = (
        (f"`{name}.{entry.name}`", f"`{option.show(entry.default)}`", f"{option.doc} _{_allowed(option)}_")
        for entry, option in options_of(kind)
    )
    heading = f"## {name}\n\n{kind.__doc__}\n"
    example = f"Environment: `{PREFIX}{name.upper().replace('.', '__')}__...`\n"
    return "\n".join([heading, example, _table(("setting", "default", "meaning, and what is allowed"), rows), ""])


def _allowed(option: Option) -> str:
    words = " or ".join(f"`{word}`" if word else "empty" for word in option.words)
    if option.kind in ("seconds", "bytes", "count"):
        limits = option.limits[0].upper() + option.limits[1:]
        return f"{limits}{', or ' + words if words else ''}."
    allowed = words or option.allowed
    return f"{allowed[0].upper()}{allowed[1:]}."


def _extra() -> str:
    rows = (
        (
            f"`{key}`",
            allowed.client,
            allowed.allowed + (" (development only)" if allowed.development_only else ""),
        )
        for key, allowed in ALLOWED.items()
    )
    return (
        "## kafka.extra\n\nlibrdkafka settings that are passed on as they are, to the clients named. In TOML "
        '`[kafka.extra]` and `"fetch.wait.max.ms" = 50`; in the environment '
        "`STATEHOLD_KAFKA__EXTRA__FETCH_WAIT_MAX_MS=50`. Those of the consumer are for live reading; restore "
        "readers have their own.\n\n" + _table(("key", "clients", "allowed"), rows) + "\n"
    )


def _locked() -> str:
    rows = [(f"`{key}`{_aliases(key)}", reason) for key, reason in LOCKED.items()]
    rows += [(f"`{key}`{_aliases(key)}", f"has a setting of its own: `{ours}`") for key, ours in OWNED.items()]
    return (
        "## Locked librdkafka settings\n\nThese are refused in `kafka.extra`, with the reason; so is every "
        "key that this page does not list.\n\n" + _table(("key", "it ..."), rows) + "\n"
    )


def _aliases(key: str) -> str:
    others = [f"`{alias}`" for alias, name in ALIASES.items() if name == key]
    return f" ({', '.join(others)})" if others else ""


def _clients() -> str:
    settings = Settings(service=ServiceSettings(instance="INSTANCE"))
    configs = {
        "consumer": client.consumer(settings, "GROUP"),
        "producer": client.producer(settings, "TRANSACTIONAL-ID"),
        "snapshot producer": client.full_producer(settings),
        "reader": client.reader(settings, "GROUP"),
        "admin": client.admin(settings),
    }
    keys = sorted({key for config in configs.values() for key in config})
    rows = ((f"`{key}`", *(_cell(config.get(key)) for config in configs.values())) for key in keys)
    return (
        "## What each client gets\n\nWith the defaults. The reader is for restores, verifiers and tools: it "
        "assigns partitions, joins no group and commits nothing.\n\n" + _table(("key", *configs), rows) + "\n"
    )


def _cell(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _profiles() -> str:
    files = ((name, profile_path(name).read_text(encoding="utf-8")) for name in ("development", "production"))
    return "## Profiles\n\n" + "\n".join(f"### {name}\n\n```toml\n{text}```\n" for name, text in files)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def lines() -> Iterator[str]:
        yield _row(head)
        yield _row(("---",) * len(head))
        yield from (_row(row) for row in rows)

    return "\n".join(lines())


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
