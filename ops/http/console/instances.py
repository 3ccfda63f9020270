"""Asks the group's other instances for their status, while the console is open in a browser."""

from __future__ import annotations

import threading
import time
from typing import Annotated, Any, Final

import msgspec

from statehold.ops.remote.remote_status import Reached, reach
from statehold.service import Service

#: seconds until their answers are asked for again
_FRESH: Final = 2.0
#: most characters of a cause that another instance reports
_CAUSE: Final = 4_000
#: a phase, the name of an error, or the step of a restore
_Name = Annotated[str, msgspec.Meta(max_length=200)]


class OtherProgress(msgspec.Struct, frozen=True):
    """Progress of a restore or a replay on another instance."""

    step: _Name
    begin: int
    end: int
    position: int
    keys: int
    left: float | None = None


class OtherRecord(msgspec.Struct, frozen=True):
    """The part of a commit record that the console shows."""

    n: int
    keys: int


class OtherLive(msgspec.Struct, frozen=True):
    """The part of a live partition's status that the console shows."""

    records: int
    bytes: int
    commit_record: OtherRecord


class OtherPartition(msgspec.Struct, frozen=True):
    """A partition of another instance. Unknown fields are ignored, so that instances of two releases get on."""

    partition: Annotated[int, msgspec.Meta(ge=0)]
    phase: _Name
    since: float
    position: int | None = None
    lag: int | None = None
    cause: str | None = None
    error: _Name | None = None
    restore: OtherProgress | None = None
    live: OtherLive | None = None


class OtherInstance(msgspec.Struct, frozen=True):
    """One of the group's other instances: its partitions, or in `trouble` the reason why they are missing."""

    client: str
    host: str
    url: str
    trouble: str = ""
    partitions: list[OtherPartition] = []


class OtherInstances:
    """Caches their answers for 2 s; a refresh runs on a thread of its own. Any thread may look."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._found: list[OtherInstance] = []
        self._asked = float("-inf")
        self._asking = False

    def look(self) -> list[OtherInstance]:
        """Return the newest answers without waiting, and ask again if they are old."""
        with self._lock:
            if not self._asking and time.monotonic() - self._asked >= _FRESH:
                self._asking = True
                threading.Thread(target=self._ask, name=f"others-{self._service.name}", daemon=True).start()
            return self._found

    def _ask(self) -> None:
        try:
            found = self._answers()
        finally:
            with self._lock:
                self._asking, self._asked = False, time.monotonic()
        with self._lock:
            self._found = found

    def _answers(self) -> list[OtherInstance]:
        service, overview = self._service, self._service.overview
        members = overview.members.look() if overview is not None else ()
        # A member without an ops server has no address to compare; this process has one, or shows no console.
        others = [member for member in members if member.url != service.url]
        answers = reach(service.settings, service.names.group, others)
        total = overview.partitions if overview is not None else 0
        return [instance_of(member.url, answer, total) for member, answer in zip(others, answers, strict=True)]


def instance_of(url: str, answer: Reached, total: int) -> OtherInstance:
    """Check what another process reports, because any process can join a group under any name.

    `total` is the input's number of partitions; each of them counts once.
    """
    if answer.status is None:
        return OtherInstance(answer.client, answer.host, url, answer.trouble)
    try:
        partitions = msgspec.convert(answer.status.get("partitions"), list[OtherPartition])
    except msgspec.ValidationError as error:
        return OtherInstance(answer.client, answer.host, url, f"{url}: its status cannot be read: {error}")
    known = {each.partition: each for each in partitions if each.partition < total}
    short = [msgspec.structs.replace(each, cause=_short(each.cause)) for each in known.values()]
    return OtherInstance(answer.client, answer.host, url, partitions=short)


def _short(cause: Any) -> Any:
    return cause[:_CAUSE] if cause else cause
