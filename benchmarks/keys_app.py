"""statehold as a store of keys, for `restore` and `disk`: `python -m benchmarks.keys_app JOB.json`.

After a clean stop it writes to the job's `pauses` file how long processing stood still, seen from inside on_record.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.keys import Put, Seen
from benchmarks.statehold_app import settings_of
from statehold import Handler, Output, Record, Service, Table
from statehold.admin.topics import ServiceTopics
from statehold.ops.process.logs import configure_logging
from statehold.telemetry.metrics import FULL_PAUSE_SECONDS

GAP_SECONDS = 0.002


class Stored(msgspec.Struct, frozen=True, gc=False):
    """The state of one key: about 85 bytes."""

    version: int
    text: str


def handler_of(output: str, gaps: list[tuple[float, float]] | None, *, counts: bool = False) -> type[Handler[Put]]:
    """Return the handler class; with `gaps` it notes when two calls lie more than 2 ms apart.

    With `counts` it reads the row of each record, and writes it with the number of its puts so far.
    """

    class Keys(Handler[Put]):
        stored = Table(key=str, value=Stored)
        seen = Output(output, value=Seen)

        def on_record(self, record: Record[Put]) -> None:
            put = record.value
            if put.look:
                found = self.stored.get(put.key, None)
                self.seen.send(Seen(put.key, found.version if found is not None else -1), put.key)
            else:
                self.stored[put.key] = Stored(put.version, put.text)

    class Counting(Keys):
        def on_record(self, record: Record[Put]) -> None:
            put = record.value
            old = self.stored.get(put.key, None)
            version = -1 if old is None else old.version
            if put.look:
                self.seen.send(Seen(put.key, version), put.key)
            else:
                self.stored[put.key] = Stored(version + 1, put.text)

    class Timed(Counting if counts else Keys):  # type: ignore[misc]
        last = 0.0

        def on_record(self, record: Record[Put]) -> None:
            now = time.perf_counter()
            if now - self.last > GAP_SECONDS and self.last and gaps is not None:
                gaps.append((time.time(), now - self.last))
            super().on_record(record)
            self.last = time.perf_counter()

    if gaps is not None:
        return Timed
    return Counting if counts else Keys


def slices(service: Service) -> list[tuple[float, float]]:
    """Return (upper bound in seconds, number) of the slices of full snapshots, from the metric."""
    bounds: dict[float, float] = {}
    for family in service.metrics.collect():
        for sample in family.samples:
            if sample.name == f"{FULL_PAUSE_SECONDS.name}_bucket":
                bound = float(sample.labels["le"])
                bounds[bound] = bounds.get(bound, 0) + sample.value
    return sorted(bounds.items())


def main() -> None:
    """Create the topics if they are not there, run until SIGTERM."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    gaps: list[tuple[float, float]] | None = [] if "pauses" in job else None
    service = Service(
        job["group"],
        input=job["input"],
        handler=handler_of(job["output"], gaps, counts=job.get("counts", False)),
        settings=settings_of(job),
    )
    configure_logging(service.settings.log)
    if job.get("prepare", True):
        ServiceTopics(service.settings, service.names, [job["output"]]).create("beginning")
    service.run()
    if gaps is not None:
        Path(job["pauses"]).write_text(json.dumps({"gaps": gaps, "slices": slices(service)}))


if __name__ == "__main__":
    main()
