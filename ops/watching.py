"""What `holdfast top` shows: the group's members, each partition's lag and speed, what local instances say."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from holdfast.config.settings import Settings
from holdfast.errors import HoldfastError
from holdfast.kafka.surveyed import Group
from holdfast.names import Names
from holdfast.ops import processes
from holdfast.ops.lagging import Lag, Lags


class Row(msgspec.Struct, frozen=True):
    """One partition now."""

    partition: int
    #: as its instance says where that is on this machine; else `assigned` or `nobody`
    phase: str
    #: client id of the member that has it, '' for nobody
    owner: str
    host: str
    lag: Lag
    #: records a second since the sample before
    speed: float
    #: of a restore: step, position, end, share done (0 to 1)
    restore: dict[str, Any] | None = None
    cause: str | None = None


class Sample(msgspec.Struct, frozen=True):
    """The service at one moment; `trouble` where it could not be asked."""

    service: str
    input: str
    time: float
    state: str = ""
    members: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    trouble: str = ""

    @property
    def speed(self) -> float:
        return sum(row.speed for row in self.rows)

    @property
    def behind(self) -> int:
        return sum(row.lag.records for row in self.rows)


class Watch:
    """Takes samples. Used by one thread; `close` at the end."""

    def __init__(self, settings: Settings, names: Names) -> None:
        """:raises StartError: the brokers do not answer, or a topic is missing."""
        self._names, self._lags = names, Lags(settings, names)
        self._before: dict[int, tuple[float, int, float]] = {}

    def sample(self) -> Sample:
        """Blocks for a few questions; trouble is told in the sample, for the next may go well."""
        names, now = self._names, time.time()
        try:
            group = self._lags.cluster.group(names.group)
            lags = self._lags.now()
        except HoldfastError as error:
            return Sample(names.group, names.input, now, trouble=str(error))
        local = self._local()
        rows = tuple(self._row(each, group, local.get(each.partition)) for each in lags)
        told = tuple(f"{each.client_id} ({each.host})" for each in group.members)
        return Sample(names.group, names.input, now, group.state.lower(), told, rows)

    def close(self) -> None:
        self._lags.close()

    def _row(self, lag: Lag, group: Group, local: dict[str, Any] | None) -> Row:
        place = (self._names.input, lag.partition)
        owner = next((each for each in group.members if place in each.partitions), None)
        phase = str(local["phase"]) if local is not None else "assigned" if owner is not None else "nobody"
        return Row(
            lag.partition,
            phase,
            owner.client_id if owner is not None else "",
            owner.host if owner is not None else "",
            lag,
            self._speed(lag),
            _progress(local.get("restore")) if local is not None else None,
            local.get("cause") if local is not None else None,
        )

    def _speed(self, lag: Lag) -> float:
        now, position = time.monotonic(), lag.position or 0
        then, before, speed = self._before.get(lag.partition, (now, position, 0.0))
        if now > then:
            speed = max(0.0, (position - before) / (now - then))
        self._before[lag.partition] = (now, position, speed)
        return round(speed, 1)

    def _local(self) -> dict[int, dict[str, Any]]:
        """What the processes of this machine say of their partitions; a live one's word comes last, and counts."""
        told = [
            row for each in processes.of_service(self._names.group) if each.status for row in each.status["partitions"]
        ]
        told.sort(key=lambda row: row["phase"] == "live")
        return {row["partition"]: row for row in told if row["phase"] != "closed"}


def _progress(view: dict[str, Any] | None) -> dict[str, Any] | None:
    if not view:
        return None
    begin, position, end = (view.get(key) or 0 for key in ("begin", "position", "end"))
    share = (position - begin) / (end - begin) if end > begin else 0.0
    return {"step": view["step"], "position": position, "end": end, "share": round(min(1.0, max(0.0, share)), 3)}
