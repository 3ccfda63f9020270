"""Declares every log event. Only `statehold run` configures logging; an import does not, so a host keeps its own."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import Any, Final, Literal, get_args

from statehold.telemetry.structlog_import import import_structlog

#: In the order of a partition's life, then errors.
Event = Literal[
    "starting",
    "subscribed",
    "waiting",
    "idle_member",
    "standby_ready",
    "standby_dropped",
    "reference_trouble",
    "member",
    "assigned",
    "revoked",
    "lost",
    "fencing",
    "predecessor_fenced",
    "restoring",
    "restore_progress",
    "restored",
    "replayed",
    "table_type_changed",
    "table_types_taken",
    "live",
    "rolled_back",
    "outcome_resolved",
    "producer_replaced",
    "client_replaced",
    "assignment_missed",
    "assignment_incomplete",
    "full_started",
    "full_written",
    "full_abandoned",
    "orphans_removed",
    "orphans_kept",
    "local_full_kept",
    "local_full_discarded",
    "local_full_failed",
    "local_store_dropped",
    "local_store_scrubbed",
    "full_noticed",
    "compaction_wanted",
    "restore_over_budget",
    "full_unusable",
    "replaying_far",
    "restore_overtaken",
    "truncated",
    "truncation_failed",
    "drained",
    "aborted",
    "fenced_by_new_owner",
    "fenced_too_often",
    "failed",
    "record_retried",
    "retry_later",
    "dead_letter",
    "replay_failed",
    "retrying",
    "process_died",
    "death_notes_failed",
    "handler_slow",
    "handler_stuck",
    "kafka_retry",
    "right_missing",
    "login_rejected",
    "login_renewed",
    "login_not_renewed",
    "offset_behind",
    "hidden_records",
    "commit_hidden",
    "call_failed",
    "calls_wait",
    "calls_block_the_loop",
    "calls_outage",
    "calls_outage_over",
    "calls_resolved",
    "effect_failed",
    "sink_open",
    "sink_retry",
    "command_rejected",
    "timers_wait",
    "late_records",
    "record_ahead",
    "rekey_hops",
    "commands_gone",
    "retry_rejected",
    "retries_gone",
    "retries_unread",
    "producer_identity",
    "partition_closed",
    "paused",
    "resumed",
    "stopping",
    "stopped",
    "kafka_log",
    "control_open",
    "control_closed",
    "freeze_unguarded",
    "reloading",
    "process_started",
    "process_ended",
    "process_restarts",
    "process_down",
    "process_killed",
    "roll_started",
    "roll_done",
    "roll_stopped",
    "scaled",
    "outage",
    "outage_over",
    "stuck",
    "topology_changed",
    "retention_near",
    "ops_open",
    "ops_closed",
    "supervision_failed",
    "thread_died",
    "uncaught",
    "doctor",
]
EVENTS: Final[tuple[str, ...]] = get_args(Event)
_KEPT: Final = 200
#: Events that are too frequent for the history.
_NOISE: Final = frozenset({"restore_progress", "kafka_log", "kafka_retry", "producer_identity"})


class RecentEvents:
    """Keeps the newest 200 log events of a service, for the ops console. Any thread may add and read."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._number = count(1)

    def note(self, level: str, event: str, fields: dict[str, object]) -> None:
        if event in _NOISE:
            return
        shown = {
            key: value for key, value in fields.items() if key not in ("service", "exc_info") and value is not None
        }
        self._events.append(
            {"number": next(self._number), "time": time.time(), "level": level, "event": event, **shown}
        )

    def after(self, number: int) -> list[dict[str, Any]]:
        """Return the events with a greater number, oldest first."""
        return [event for event in self._events.copy() if event["number"] > number]


class Log:
    """A structlog logger that accepts declared events only. Any thread."""

    __slots__ = ("_bound", "_logger", "_recent")

    def __init__(self, logger: Any = None, *, recent: RecentEvents | None = None, **bound: object) -> None:
        if logger is None:
            logger = import_structlog().get_logger("statehold")
        self._logger = logger.bind(**bound) if bound else logger
        self._recent, self._bound = recent, bound

    def bind(self, **fields: object) -> Log:
        log = Log(self._logger, recent=self._recent, **fields)
        log._bound = {**self._bound, **fields}
        return log

    def debug(self, event: Event, **fields: object) -> None:
        self._logger.debug(event, **fields)

    def info(self, event: Event, **fields: object) -> None:
        self._note("info", event, fields)
        self._logger.info(event, **fields)

    def warning(self, event: Event, **fields: object) -> None:
        self._note("warning", event, fields)
        self._logger.warning(event, **fields)

    def error(self, event: Event, **fields: object) -> None:
        self._note("error", event, fields)
        self._logger.error(event, **fields)

    def _note(self, level: str, event: Event, fields: dict[str, object]) -> None:
        if self._recent is not None:
            self._recent.note(level, event, {**self._bound, **fields})
