"""Which process runs what when tests run side by side (`-n 4`), and in which order.

A file stays on one process; so does a folder whose tests share what takes long to start. What takes longest begins
first: what begins last decides when the run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pytest

#: their conftest starts something for the whole session: Spark, a recorded run, a guarded broker, a proxied one, ...
TOGETHER: Final = (
    "tests/spark/",
    "tests/tools/",
    "tests/security/",
    "tests/assumptions/",
    "tests/sinks/",
    "tests/contracts/",
)
#: from the closing lines of a whole run; files that compute are between files that wait
LONGEST: Final = (
    "tests/spark/",
    "tests/contracts/",
    "tests/tools/",
    "tests/chaos/test_chaos.py",
    "tests/security/",
    "tests/docs/test_tutorial.py",
    "tests/network/test_three.py",
    "tests/system/test_several_inputs.py",
    "tests/simulation/test_schedules.py",
    "tests/ops/test_console_group.py",
    "tests/dev/test_cluster.py",
    "tests/docs/test_site.py",
    "tests/monitoring/test_live.py",
    "tests/system/test_rebalance.py",
    "tests/system/test_snapshots.py",
)


def unit(nodeid: str) -> str:
    """What stays together with this test: its file, or its folder."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def order(items: list[pytest.Item]) -> None:
    """The longest first, then what waits for something outside, then the rest: many short ones fill the gaps."""
    heavy = {unit(item.nodeid) for item in items if any(map(item.get_closest_marker, ("kafka", "slow", "root")))}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        mine = unit(item.nodeid)
        return LONGEST.index(mine) if mine in LONGEST else len(LONGEST), mine not in heavy

    items.sort(key=rank)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of --dist loadfile with the units of this module, in the order of their first tests."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # it means by the number of tests; the longest have few
    made: Any = LoadFileScheduling(config, log)
    made._split_scope = unit
    return made
