"""Far away, narrow, unreliable: what lies between the clients and the brokers, which see nothing of it (F17).

No root is needed: a link in user space stands in front of each broker. The independent verifier ends each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.network.gaps import longest_gap
from tests.support.brokers import SETTINGS, started
from tests.support.link import Link
from tests.support.processes import Process, await_true
from tests.support.stage import Stage

from statehold.dev import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.long]

Figure = Callable[[str, float, str], None]
Links = dict[int, Link]
PARTITIONS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def linked() -> Iterator[tuple[Cluster, Links]]:
    with ExitStack() as stack:
        links = {number: stack.enter_context(Link(number)) for number in (1, 2, 3)}
        advertised = {number: link.port for number, link in links.items()}
        cluster = started(lambda: Cluster(3, settings=SETTINGS, advertised=advertised))
        stack.enter_context(cluster)
        for number, link in links.items():
            link.connect(cluster.ports[number])
        yield cluster, links


@pytest.fixture
def links(linked: tuple[Cluster, Links]) -> Iterator[Links]:
    yield linked[1]
    for link in linked[1].values():
        link.heal()


@pytest.fixture
def stage(linked: tuple[Cluster, Links], tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(linked[0].bootstrap_servers, tmp_path, len(PARTITIONS))
    yield stage.create_topics()
    stage.close()


def slow(link: Link) -> None:
    link.delay = 0.2


def narrow(link: Link) -> None:
    link.rate = 125_000


def unreliable(link: Link) -> None:
    link.resets = 0.05


@pytest.mark.parametrize("fault", [slow, narrow, unreliable], ids=["200 ms", "1 Mbit", "5 % resets"])
def test_links_of_a_bad_network(stage: Stage, links: Links, fault: Callable[[Link], None], figure: Figure) -> None:
    """All three at once, for a minute: the service continues, and fences no owner."""
    process = stage.process("only").await_live(*PARTITIONS, seconds=120)
    began = time.time()
    with stage.load(100):
        stage.await_progress()
        for link in links.values():
            fault(link)
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            stage.await_progress(240)
        for link in links.values():
            link.heal()
        stage.await_progress(240)
    settle(stage, process)
    figure("longest gap", longest_gap(stage, began), "s")
    figure("connections broken", sum(link.broken for link in links.values()), "")
    figure("producers replaced", len(process.events("producer_replaced")), "")


@pytest.mark.parametrize("late", [1, 2, 3])
def test_one_host_that_is_late_by_a_second_is_worked_with(
    stage: Stage, links: Links, late: int, figure: Figure
) -> None:
    """Each way, so two for an answer: slower, and no more. A start works, too."""
    process = stage.process("only").await_live(*PARTITIONS, seconds=120)
    began = time.time()
    with stage.load(50):
        stage.await_progress()
        links[late].delay = 1.0
        for _ in range(3):
            stage.await_progress(240)
        assert process.stop(120) == 0
        process = stage.process("only").await_live(*PARTITIONS, seconds=300)
        stage.await_progress(240)
    stage.await_all(300)
    figure("longest gap", longest_gap(stage, began), "s")
    links[late].heal()
    settle(stage, process)


def settle(stage: Stage, process: Process) -> None:
    stage.await_all(300)
    assert not process.events("failed", "thread_died", "stuck", "fenced_by_new_owner"), process.tail()
    await_true(lambda: process.live() == set(PARTITIONS), "all live", 120)
    assert process.stop(120) == 0
    stage.verify()
