"""Settings of what happens around a record: its side effects and its timers."""

from __future__ import annotations

from dataclasses import dataclass

from statehold.config.common.option import check_section, count, seconds, secret, text
from statehold.config.common.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectsSettings:
    """Side effects outside Kafka, which run after the commit of their record (docs/effects.md)."""

    pending: int = count(
        1000,
        "Side effects of a partition that may be owed; from then on it takes no further records until some are done. "
        "Every mark repeats those that are owed, so they are also bounded by an eighth of kafka.message_max_bytes.",
        low=1,
        high=100_000,
    )
    threads: int = count(
        1,
        "Threads that run the effects of a partition. With one they run in the order of the records; with more, those "
        "of one record key do.",
        low=1,
        high=64,
    )
    max_backoff: float = seconds(
        30.0, "Longest wait before an effect that failed is tried again; waits double up to it.", low=0.1, high=3600.0
    )
    stop_wait: float = seconds(
        1.0,
        "How long a partition that leaves waits for effects that are owed; what is not done then is done by the next "
        "owner.",
        low=0.0,
        high=600.0,
    )

    def __post_init__(self) -> None:
        check_section(self, "effects")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersSettings:
    """Timers of handlers that have on_timer (docs/timers.md)."""

    idle: float = seconds(
        5.0,
        "A partition that got no record for so long is taken for idle: its timers then go by the clock of its worker, "
        "and a record that comes afterwards with an older timestamp comes late.",
        low=0.1,
        high=86_400.0,
    )

    def __post_init__(self) -> None:
        check_section(self, "timers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The database that the sinks of a handler write to (docs/sinks.md)."""

    url: str = text(
        "",
        "Where PostgreSQL is: postgresql://user@host:5432/database, or what else libpq takes, without the password. "
        "One database for all sinks of a service, because their rows and the positions are one transaction. One "
        "connection per partition.",
    )
    password: Secret = secret("Password for the database. Give it in the secrets directory.")  # noqa: RUF009
    table: str = text(
        "statehold_sink",
        "The table with epoch and position of each partition, which `statehold sink init` makes.",
        pattern=r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?",
        form="a name, or schema.name",
    )
    timeout: float = seconds(
        10.0,
        "How long one call to the database may take. After it the connection is given up, the transaction is undone "
        "and handled again. Less than commit.transaction_timeout: Kafka's transaction is open meanwhile.",
        low=0.1,
        high=600.0,
    )
    outage: float = seconds(
        60.0,
        "For how long a database that does not answer is tried again with the state kept in memory. Then the partition "
        "fails, and begins anew every 30 s.",
        low=0.0,
        high=86_400.0,
    )

    def __post_init__(self) -> None:
        check_section(self, "sink")
