"""A process of the example's service that dies or stands still at a named point; see `install`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from examples.sinks.app import Payments

from statehold import Service, dead_letter
from statehold.config import load
from statehold.errors import SinkRefused
from statehold.ops.process.logs import configure_logging

POINTS = {
    "before_take": "restored, the epoch is not taken",
    "after_take": "the epoch is taken, the position is not read yet",
    "before_database": "everything is in Kafka's transaction, nothing in the database's",
    "before_rows": "the guard has passed and holds the row's lock, no row is written",
    "after_rows": "rows and position are written, the database's commit is not asked for",
    "after_database": "the database has committed, Kafka's commit is not asked for",
    "after_kafka": "both have committed, no caller has the result yet",
}
#: with rows that the database refuses, too
REFUSED = "refused"


class Strict(Payments):
    """What the database refuses is a dead letter."""

    on_failure: ClassVar = {SinkRefused: dead_letter(ordered=False)}


def install(directory: str) -> None:
    """Who comes to a point whose file `<directory>/<point>` says `kill` or `freeze` does so, once."""
    from statehold.bound.sink import BadRow
    from statehold.kafka.clients.producer import KafkaTransactions
    from statehold.worker.sinks.postgres import PostgresSession

    def hit(point: str) -> None:
        path = Path(directory) / point
        try:
            path.rename(path.with_suffix(f".{os.getpid()}"))
        except FileNotFoundError:
            return
        action = path.with_suffix(f".{os.getpid()}").read_text()
        os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        time.sleep(0.01)  # the signal comes to another thread of this process, a moment later

    commit: Any = PostgresSession.commit

    def refusing(self: PostgresSession, *args: Any) -> None:
        try:
            commit(self, *args)
        except BadRow:
            hit(REFUSED)
            raise

    setattr(PostgresSession, "commit", refusing)  # noqa: B010  - of another type to mypy
    _around(PostgresSession, "take", lambda: hit("before_take"), lambda: hit("after_take"))
    _around(PostgresSession, "commit", lambda: hit("before_database"), lambda: hit("after_database"))
    _around(PostgresSession, "_delete", lambda: hit("before_rows"), _nothing)
    _around(PostgresSession, "_upsert", _nothing, lambda: hit("after_rows"))
    _around(KafkaTransactions, "commit", _nothing, lambda: hit("after_kafka"))


def _around(kind: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    inner = getattr(kind, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        before()
        result = inner(self, *args, **kwargs)
        after()
        return result

    setattr(kind, name, wrapped)


def _nothing() -> None:
    pass


handler = Strict if os.environ.get("SINK_STRICT") else Payments
service = Service("balances", input=os.environ.get("SINK_INPUT", "payments"), handler=handler, settings=load())


def main() -> None:
    install(os.environ["SINK_POINTS"])
    configure_logging(service.settings.log)
    service.run()


if __name__ == "__main__":
    main()
