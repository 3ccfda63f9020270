"""Takes the samples of `statehold top`: members, lag and speed of each partition, status of instances."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateholdError
from statehold.ops.remote import local_services
from statehold.ops.remote.remote_status import reach
from statehold.ops.reports.acl_hint import explained
from statehold.ops.reports.hot_keys import KeyBacklog, key_backlog
from statehold.ops.reports.lag import Lag, Lags
from statehold.ports import ConsumerGroup


class PartitionRow(msgspec.Struct, frozen=True):
    """One partition in a sample."""

    partition: int
    #: the instance's phase if it answers; else `assigned` or `nobody`
    phase: str
    #: the instance that owns it, or the member's client id if it does not answer; '' without an owner
    owner: str
    host: str
    lag: Lag
    #: records a second since the previous sample
    speed: float
    #: of a restore: step, position, end, share done (0 to 1)
    restore: dict[str, Any] | None = None
    cause: str | None = None


class Sample(msgspec.Struct, frozen=True):
    """The service at one moment; `trouble` if it did not answer."""

    service: str
    input: str
    time: float
    state: str = ""
    members: tuple[str, ...] = ()
    rows: tuple[PartitionRow, ...] = ()
    trouble: str = ""

    @property
    def speed(self) -> float:
        return sum(row.speed for row in self.rows)

    @property
    def behind(self) -> int:
        return sum(row.lag.records for row in self.rows)


class Watch:
    """Takes samples. Used by one thread; call `close` at the end."""

    def __init__(self, settings: Settings, names: Names) -> None:
        """:raises StartError: the brokers do not answer, or a topic is missing."""
        self._settings, self._names, self._lags = settings, names, Lags(settings, names)
        self._before: dict[int, tuple[float, int, float]] = {}

    def first(self) -> Sample:
        """Return the sample to show before the first answer."""
        return Sample(self._names.group, ", ".join(self._names.inputs), time.time(), trouble="asking the brokers")

    def sample(self) -> Sample:
        """Take a sample. Blocks for a few requests; a failure is in the sample, because the next may succeed."""
        names, now = self._names, time.time()
        inputs = ", ".join(names.inputs)
        try:
            group = self._lags.cluster.group(names.group, names.input)
            lags = self._lags.now()
        except StateholdError as error:
            return Sample(names.group, inputs, now, trouble=f"{error}{explained(error)}")
        statuses = self._statuses(group)
        rows = tuple(self._row(each, group, statuses.get(each.partition)) for each in lags)
        members = tuple(f"{each.client_id} ({each.host})" for each in group.members)
        return Sample(names.group, inputs, now, group.state, members, rows)

    def keys(self) -> KeyBacklog:
        """Return which keys the backlog has. Blocks for seconds; raises what `key_backlog` raises."""
        return key_backlog(self._lags, self._names)

    def close(self) -> None:
        self._lags.close()

    def _row(self, lag: Lag, group: ConsumerGroup, local: dict[str, Any] | None) -> PartitionRow:
        owner = next((each for each in group.members if lag.partition in each.partitions), None)
        phase = str(local["phase"]) if local is not None else "assigned" if owner is not None else "nobody"
        return PartitionRow(
            lag.partition,
            phase,
            str(local["instance"]) if local is not None else owner.client_id if owner is not None else "",
            owner.host if owner is not None else "",
            lag,
            self._speed(lag),
            _progress(local.get("restore")) if local is not None else None,
            local_services.cause_of(local) if local is not None else None,
        )

    def _speed(self, lag: Lag) -> float:
        now, position = time.monotonic(), lag.position or 0
        then, before, speed = self._before.get(lag.partition, (now, position, 0.0))
        if now > then:
            speed = max(0.0, (position - before) / (now - then))
        self._before[lag.partition] = (now, position, speed)
        return round(speed, 1)

    def _statuses(self, group: ConsumerGroup) -> dict[int, dict[str, Any]]:
        """Return the status of each partition, from instances of this machine by their sockets, others by their ops
        servers; that of a live one overrides others.
        """
        local = [each.status for each in local_services.of_service(self._names.group) if each.status]
        here = {status.get("url") for status in local}
        others = [each for each in group.members if each.url not in here]
        far = [each.status for each in reach(self._settings, self._names.group, others) if each.status]
        rows = [{**row, "instance": each["instance"]} for each in (*far, *local) for row in each["partitions"]]
        rows.sort(key=lambda row: row["phase"] == "live")
        return {row["partition"]: row for row in rows if row["phase"] != "closed"}


def _progress(view: dict[str, Any] | None) -> dict[str, Any] | None:
    if not view:
        return None
    begin, position, end = (view.get(key) or 0 for key in ("begin", "position", "end"))
    share = (position - begin) / (end - begin) if end > begin else 0.0
    return {"step": view["step"], "position": position, "end": end, "share": round(min(1.0, max(0.0, share)), 3)}
