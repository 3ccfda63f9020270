"""Explains why this member has no partition: the group waits for other members, or this member is idle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from statehold.health.group_check import GroupReading
from statehold.ports import Clock, ConsumerGroup, GroupMember
from statehold.telemetry.log_events import Log

#: Grace period in seconds, because a stable group assigns sooner.
_GRACE: Final = 3.0
_READ_EVERY: Final = 5.0
_NAMED: Final = 5


class NoPartition(NamedTuple):
    """Why this member has no partition. An idle member logs at level info, a waiting one at level warning."""

    kind: Literal["waiting", "idle_member"]
    text: str


class JoinDiagnosis:
    """Runs on the manager thread. Any thread may read `text` and `idle`."""

    def __init__(self, reading: GroupReading, partitions: int, session: float | None, log: Log, clock: Clock) -> None:
        self._reading, self._partitions, self._session = reading, partitions, session
        self._log, self._clock, self._empty_since = log, clock, clock()
        reading.next = self._empty_since + _READ_EVERY
        self._logged: NoPartition | None = None

    @property
    def text(self) -> str | None:
        """The reason; None if this member has a partition or the reason is not known yet."""
        return self._logged.text if self._logged is not None else None

    @property
    def idle(self) -> bool:
        """True if this member is idle: the other members own every partition."""
        return self._logged is not None and self._logged.kind == "idle_member"

    def turn(self, *, empty: bool, member: Callable[[], str]) -> None:
        """Read the group and log the reason. The manager calls this on every turn; `empty`: no partition assigned."""
        now = self._clock()
        if not empty:
            self._empty_since, self._logged = now, None
        view = self._reading.turn(_READ_EVERY, wanted=empty and now - self._empty_since >= _GRACE)
        if view is not None and empty:
            self._log_reason(view, member())

    def _log_reason(self, view: ConsumerGroup, member: str) -> None:
        reason = explain(view, member, self._partitions, self._session)
        if reason is not None and reason != self._logged:
            (self._log.info if reason.kind == "idle_member" else self._log.warning)(reason.kind, cause=reason.text)
        self._logged = reason


def explain(view: ConsumerGroup, member: str, partitions: int, session: float | None) -> NoPartition | None:
    """Return why `member` has no partition; None if the group has no other member.

    `session` is the session timeout in seconds; None where only the broker knows it.
    """
    own = next((each for each in view.members if each.id == member), None)
    others = [each for each in view.members if each is not own]
    ends = "its session ends" if session is None else f"its session ends, {session:g} s after its last heartbeat"
    if not others:
        return None
    holding = [each for each in others if each.partitions]
    if view.state == "stable" and sum(len(each.partitions) for each in holding) >= partitions:
        if own is not None and len(holding) >= partitions:
            return NoPartition(
                "idle_member",
                f"this member is idle: the {partitions} partitions are assigned to {_named(holding)}. "
                f"If one of them leaves, this member takes over",
            )
        return NoPartition(
            "waiting",
            f"every partition is still assigned to {_named(holding)}. A killed process keeps its partitions until "
            f"{ends}",
        )
    return NoPartition(
        "waiting",
        f"the group is {view.state}: it waits for {_named(others)} to rejoin, for a killed process until {ends}",
    )


def _named(members: list[GroupMember]) -> str:
    shown = ", ".join(f"{each.client_id} on {each.host}" for each in members[:_NAMED])
    return shown if len(members) <= _NAMED else f"{shown} and {len(members) - _NAMED} more"
