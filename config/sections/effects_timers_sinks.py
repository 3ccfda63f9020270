"""Settings of effects, calls, time, timers and sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import Section, count, seconds, secret, text
from statehold.config.common.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsSettings(Section, name="effects"):
    """Effects outside Kafka, which run after the commit of their record (docs/how-to/write/effects.md)."""

    pending: int = count(
        1000,
        "Effects of a partition that may be pending; at this number it takes no further records until some are "
        "done. Each commit record repeats the pending effects, so an eighth of kafka.message_max_bytes also "
        "bounds them.",
        low=1,
        high=100_000,
    )
    threads: int = count(
        1,
        "Threads that run the effects of a partition. With one thread, effects run in the order of the records; "
        "with more, those of one record key do.",
        low=1,
        high=64,
    )
    max_backoff: float = seconds(
        30.0, "Longest wait before a failed effect is retried; waits double up to it.", low=0.1, high=3600.0
    )
    stop_wait: float = seconds(
        1.0,
        "How long a partition that stops waits for pending effects. The next owner runs the rest.",
        low=0.0,
        high=600.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSettings(Section, name="time"):
    """The time of a partition, by which timers, windows, joins and expiry go (docs/explanation/time.md)."""

    max_ahead: float | Literal["off"] = seconds(
        "off",
        "How far ahead of its worker's clock a record may advance the partition's time. A record with a later "
        "timestamp is processed and does not advance the time; if the handler's on_failure names TimestampAhead, "
        "that policy decides about it. In service.mode 'development' without a limit, a record of more than an hour "
        "ahead advances the time and is logged (record_ahead).",
        low=1.0,
        high=31_536_000.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsSettings(Section, name="calls"):
    """Durable calls of other systems (docs/how-to/write/calls.md)."""

    pending: int = count(
        1000,
        "Calls of a partition that may be pending; at this number it takes no further records until some are answered. "
        "Answers are always taken.",
        low=1,
        high=1_000_000,
    )
    in_flight: int = count(
        1000,
        "Attempts that the process makes at the same time, over all its partitions. Further calls wait.",
        low=1,
        high=100_000,
    )
    threads: int = count(
        16,
        "Threads of the process for calls whose function is no `async def`.",
        low=1,
        high=1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersSettings(Section, name="timers"):
    """Timers of handlers that have on_timer (docs/how-to/write/timers.md)."""

    idle: float = seconds(
        5.0,
        "A partition without records for this long is idle. Its timers then follow its worker's clock, and a "
        "later record with an older timestamp is late.",
        low=0.1,
        high=86_400.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings(Section, name="sink"):
    """The database that the sinks of a handler write to (docs/how-to/write/sinks.md)."""

    url: str = text(
        "",
        "Address of PostgreSQL: postgresql://user@host:5432/database, or another form that libpq accepts, "
        "without the password. All sinks of a service use one database, because their rows and the positions "
        "are one transaction. One connection per partition.",
    )
    password: Secret = secret("Password for the database. Give it in the secrets directory.")  # noqa: RUF009
    table: str = text(
        "statehold_sink",
        "Table with the epoch and position of each partition; `statehold sink init` creates it.",
        pattern=r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?",
        form="a name, or schema.name",
    )
    timeout: float = seconds(
        10.0,
        "How long one call to the database may take. Then the worker closes the connection, rolls the "
        "transaction back and processes its records again. Less than commit.transaction_timeout, because "
        "Kafka's transaction is open meanwhile.",
        low=0.1,
        high=600.0,
    )
    outage: float = seconds(
        60.0,
        "How long a worker retries a database that does not answer, with the state in memory. Then the "
        "partition fails, and restarts every 30 s.",
        low=0.0,
        high=86_400.0,
    )
