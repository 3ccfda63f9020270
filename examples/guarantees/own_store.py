"""Results and position are one database transaction; Kafka's offsets are unused. OUTPUT is an SQLite file."""

from __future__ import annotations

import sqlite3

from examples.guarantees.scene import Scene, batches, scene

TABLES = """
create table if not exists results (value blob);
create table if not exists position (only integer primary key check (only = 0), next integer);
insert or ignore into position values (0, 0);
"""


def main(here: Scene) -> None:
    database = sqlite3.connect(here.output)
    database.executescript(TABLES)
    (position,) = database.execute("select next from position").fetchone()
    consumer = here.consumer(position, **{"enable.auto.commit": False})
    for batch in batches(consumer):
        with database:  # one transaction
            database.executemany("insert into results values (?)", [(value,) for value in batch.values])
            database.execute("update position set next = ?", (batch.end,))
            here.point("before the commit")
        here.point("after the commit")
    consumer.close()


if __name__ == "__main__":
    main(scene())
