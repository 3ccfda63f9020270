"""Named points at which a worker is killed, frozen or held up: wrapped around the product's functions in tests only.

The test arms a point by a file `<directory>/<point>` whose text is `kill`, `freeze` or `hold SECONDS`. The first thread
of any worker that comes by claims it and does that to its own process, exactly there.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

POINTS = {
    "before_fence": "assigned, nothing done yet",
    "after_fence": "fenced, nothing read yet",
    "mid_restore": "some of the state is read",
    "mid_replay": "some of the gap is replayed",
    "before_begin": "records are handled, Kafka knows of no transaction yet",
    "after_produce": "outputs are sent, offsets, delta and mark are not",
    "after_offsets": "the offsets are in the transaction, the mark is not",
    "before_commit": "everything is in the transaction, the commit is not asked for",
    "after_commit": "the commit is confirmed, no caller has the result yet",
    "mid_full": "some chunks of a full are written",
    "after_manifest": "a full is complete, no mark refers to it yet",
    "before_truncation": "the mark refers to a full, nothing is truncated yet",
    "mid_drain": "the partition is revoked, or the service stops",
}


class Points:
    """The side of the process that arms; one directory for all workers of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def arm(self, point: str, action: str) -> None:
        assert point in POINTS, point
        temporary = self.directory / f".{point}"
        temporary.write_text(action)
        temporary.rename(self.directory / point)

    def disarm(self, point: str) -> None:
        (self.directory / point).unlink(missing_ok=True)

    def reached(self, point: str) -> list[int]:
        """The pids of the processes that came there while it was armed."""
        return [int(path.suffix[1:]) for path in self.directory.glob(f"{point}.*")]


class _Armed:
    """The worker's side."""

    def __init__(self, directory: str) -> None:
        self._paths = {point: os.path.join(directory, point) for point in POINTS}

    def hit(self, point: str) -> None:
        path = self._paths[point]
        if not os.path.exists(path):
            return
        claimed = f"{path}.{os.getpid()}"
        try:
            os.rename(path, claimed)
        except FileNotFoundError:
            return  # another thread was first
        action, _, seconds = Path(claimed).read_text().partition(" ")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.01)  # the signal comes to another thread of this process, a moment later
        else:
            time.sleep(float(seconds))


def install(directory: str) -> None:
    """Wrap the product's functions; in a worker, before its service is made."""
    from statehold.kafka.clients.full_producer import KafkaFullSink
    from statehold.kafka.clients.producer import KafkaTransactions
    from statehold.kafka.clients.reader import KafkaReader
    from statehold.worker.drain import Drain
    from statehold.worker.full_snapshots.scheduler import FullSnapshots
    from statehold.worker.recovery import replay
    from statehold.worker.recovery.recovery import Recovery

    armed = _Armed(directory)
    _before(Recovery, "fence", lambda: armed.hit("before_fence"))
    _after(Recovery, "fence", lambda: armed.hit("after_fence"))
    _before(replay, "handle_again", lambda: armed.hit("mid_replay"))
    _before(KafkaTransactions, "begin", lambda: armed.hit("before_begin"))
    _before(KafkaTransactions, "send_offsets", lambda: armed.hit("after_produce"))
    _after(KafkaTransactions, "send_offsets", lambda: armed.hit("after_offsets"))
    _before(KafkaTransactions, "commit", lambda: armed.hit("before_commit"))
    _after(KafkaTransactions, "commit", lambda: armed.hit("after_commit"))
    _after(KafkaFullSink, "send", lambda: armed.hit("mid_full"))
    _before(Drain, "run", lambda: armed.hit("mid_drain"))
    _wrap_snapshots(FullSnapshots, armed)
    _wrap_read(KafkaReader, armed)


def _wrap_snapshots(full_snapshots: Any, armed: _Armed) -> None:
    boundary = full_snapshots.boundary

    def wrapped(self: Any, commit_record: Any) -> Any:
        if self.pending:
            armed.hit("after_manifest")
        if self.truncation is not None and self.truncation.due:
            armed.hit("before_truncation")
        return boundary(self, commit_record)

    full_snapshots.boundary = wrapped


def _wrap_read(reader: Any, armed: _Armed) -> None:
    read = reader.read

    def wrapped(self: Any, topic: str, *rest: Any) -> Iterator[Any]:
        for batch in read(self, topic, *rest):
            yield batch
            if topic.endswith((".changelog", ".snapshot")):
                armed.hit("mid_restore")

    reader.read = wrapped


def _before(owner: Any, name: str, act: Callable[[], None]) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        act()
        return call(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, act: Callable[[], None]) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        act()
        return result

    setattr(owner, name, wrapped)
