"""Says why this member has no partition: it must wait for somebody, or it is a standby."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from statehold.common.background_call import Background, Beside, BesideOf
from statehold.errors import KafkaTrouble
from statehold.ports import Clock, GroupView, MemberView
from statehold.telemetry.log_events import Log

#: a group that is at peace hands out partitions sooner than this
_QUIET: Final = 3.0
_LOOK_EVERY: Final = 5.0
_NAMED: Final = 5


class Reason(NamedTuple):
    kind: Literal["waiting", "standby"]
    text: str


class Joining:
    """Belongs to the manager's thread, but for `text`; the group is asked beside it, so that nothing waits."""

    def __init__(
        self,
        look: Callable[[], GroupView],
        partitions: int,
        session: float | None,
        log: Log,
        clock: Clock,
        beside: BesideOf = Background,
    ) -> None:
        self._look, self._partitions, self._session = look, partitions, session
        self._log, self._clock, self._beside = log, clock, beside
        self._since = self._looked = clock()
        self._asking: Beside | None = None
        self._view: GroupView | None = None
        self._told: Reason | None = None

    @property
    def text(self) -> str | None:
        """Why there is no partition here; None where there is one, or nothing is known yet."""
        return self._told.text if self._told is not None else None

    @property
    def standby(self) -> bool:
        return self._told is not None and self._told.kind == "standby"

    def turn(self, *, empty: bool, member: Callable[[], str]) -> None:
        """Many times a second; `empty` while no partition is assigned here."""
        now = self._clock()
        if not empty:
            self._since, self._told, self._view = now, None, None
            return
        if self._asking is not None:
            if self._asking.ended():
                self._asking = None
                self._tell(member())
        elif now - self._since >= _QUIET and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._asking = self._beside(self._ask, "joining")

    def _ask(self) -> None:
        try:
            self._view = self._look()
        except KafkaTrouble as error:
            self._view = None
            self._log.debug("kafka_retry", doing="look at the group", cause=str(error))

    def _tell(self, member: str) -> None:
        view, self._view = self._view, None
        if view is None:
            return
        reason = why(view, member, self._partitions, self._session)
        if reason is not None and reason != self._told:
            (self._log.info if reason.kind == "standby" else self._log.warning)(reason.kind, cause=reason.text)
        self._told = reason


def why(view: GroupView, member: str, partitions: int, session: float | None) -> Reason | None:
    """None: there is nothing to say. `session` is None where the broker alone knows it."""
    own = next((each for each in view.members if each.id == member), None)
    others = [each for each in view.members if each is not own]
    ends = "its session ends" if session is None else f"its session ends, {session:g} s after it was heard last"
    if not others:
        return None
    holding = [each for each in others if each.partitions]
    if view.state == "stable" and sum(len(each.partitions) for each in holding) >= partitions:
        if own is not None and len(holding) >= partitions:
            return Reason(
                "standby", f"all {partitions} partitions have an owner: {_named(holding)}; this one takes over"
            )
        return Reason(
            "waiting",
            f"every partition is still held by {_named(holding)}; a process that was killed keeps them until {ends}",
        )
    return Reason(
        "waiting",
        f"the group is {view.state}: it waits for {_named(others)} to join anew; for one that was killed until {ends}",
    )


def _named(members: list[MemberView]) -> str:
    shown = ", ".join(f"{each.client} on {each.host}" for each in members[:_NAMED])
    return shown if len(members) <= _NAMED else f"{shown} and {len(members) - _NAMED} more"
