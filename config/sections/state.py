"""Settings of where a partition's state is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from statehold.config.common.option import Section, choice, count, size, text


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings(Section, name="state"):
    """Where tables keep their committed values. The state is in Kafka in any case."""

    storage: Literal["memory", "disk"] = choice(
        "memory",
        "Where tables are that declare no storage. disk: those that can be there (docs/how-to/state/disk.md); the "
        "others stay in memory. It needs the extra statehold[disk].",
    )
    memory: int = size(
        256_000_000,
        "Memory of this process for decoded values of tables on disk and their keys, in equal shares: an estimate, "
        "from the bytes of each. The kernel keeps pages of the files in memory besides.",
        low=1_000_000,
        high=10**13,
    )
    dir: str = text(
        "",
        "Directory on a local disk for the files of tables on disk, as large as the state of all partitions that were "
        "ever assigned here. Empty: tables in service.state_dir. No network file system.",
        pattern=r"|/.*",
        form="empty, or an absolute path",
    )
    disk_limit: int = size(
        64_000_000_000,
        "Most bytes of the files of one partition. A partition that has reached it stops with LocalStoreFailed. The "
        "process reserves so much of its address space for each partition, and no memory.",
        low=1_048_576,
        high=10**13,
    )
    scrub: int = count(
        5,
        "Processor time for reading the files of live partitions again in the background, in milliseconds of each "
        "second for the whole process. The digest of all rows is compared with the commit record; a partition whose "
        "files differ fails, and restores from Kafka. 0: off.",
        high=1000,
    )
