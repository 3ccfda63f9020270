"""Files of a partition as tests open them, also in processes of their own, and as a driver has them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from statehold.common.names import Names
from statehold.disk.directory import LocalStores
from statehold.disk.port import PartitionStore
from statehold.snapshot.format.partition_identity import Place
from statehold.testing import Driver

PLACE = Place(Names("group", "input"), 3, 8, {})
TABLES = ("a", "b.c")


def local(directory: Path, dropped: list[str] | None = None, limit: int = 1 << 26, boot: str = "this") -> LocalStores:
    causes: list[str] = [] if dropped is None else dropped
    return LocalStores(directory, limit, lambda path, cause: causes.append(cause), lambda: boot)


def contents(store: PartitionStore, table: str = "a") -> dict[bytes, bytes]:
    snapshot = store.snapshot()
    try:
        return dict(snapshot.rows(table))
    finally:
        snapshot.close()


def lose_a_row(rows: dict[bytes, bytes]) -> bytes:
    """Delete a row of a table in the files of a driver; return its key."""
    lost = next(iter(rows))
    del rows[lost]
    return lost


def damage_a_row(rows: dict[bytes, bytes]) -> bytes:
    """Change the last bit of the row with the lowest key, which a handler or an index reads first; return its key."""
    first = min(rows)
    rows[first] = rows[first][:-1] + bytes([rows[first][-1] ^ 1])
    return first


def started_again(driver: Driver) -> None:
    driver.crash()
    driver.restore()


def from_files(driver: Driver) -> bool:
    restored = [fields for event, fields in driver.events if event == "restored"]
    return bool(restored[-1].get("from_files"))


def dropped(driver: Driver) -> list[str]:
    return [str(fields["cause"]) for event, fields in driver.events if event == "local_store_dropped"]


def index_of_files(driver: Driver) -> dict[str, list[tuple[int, Any]]]:
    """Return the entries in the files, decoded by the keys' own bytes."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for name, rows in driver.files.files[0].tables.items():
        if name.startswith("due "):
            found[name[4:]] = sorted((int.from_bytes(place[:9], "big") - (1 << 63), place[9:]) for place in rows)
    return found


def batch(number: int) -> dict[bytes, bytes | None]:
    """Twenty rows, of which some replace or delete those of earlier batches."""
    rnd = random.Random(number)
    return {b"%d" % rnd.randrange(500): None if rnd.random() < 0.2 else b"%d" % number * 20 for _ in range(20)}
