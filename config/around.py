"""Settings of what happens around a record: its side effects and its timers."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.options import check_section, count, seconds


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
