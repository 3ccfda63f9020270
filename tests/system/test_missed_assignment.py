"""An answer to a heartbeat that carries an assignment is lost: librdkafka 2.16 does not ask for it again (KIP-848)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.proxy import Proxy, Request
from tests.support.stage import KIP848, Stage
from tests.support.wrong_answers import has_assignment

from statehold.dev import Cluster

pytestmark = pytest.mark.kafka

QUICK = {**KIP848, "STATEHOLD_KAFKA__SOCKET_TIMEOUT": "1.5"}


@pytest.fixture
def stage(proxied: tuple[Cluster, Proxy], tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(proxied[0].bootstrap_servers, tmp_path, 2)
    yield stage.create_topics()
    stage.close()
    proxied[1].lie = None


def test_a_member_that_missed_a_revocation_joins_again(stage: Stage, proxied: tuple[Cluster, Proxy]) -> None:
    lost = threading.Event()
    with Local(stage, **QUICK) as local:
        local.await_live(0, 1)
        await_true(lambda: local.events("member"), "the member has its id")
        member = str(local.events("member")[-1]["member_id"]).encode()

        def lose_once(request: Request, answer: bytes) -> bytes | None:
            if member in request.frame and has_assignment(request, answer) and not lost.is_set():
                lost.set()
                raise ConnectionResetError
            return None

        proxied[1].lie = lose_once
        stage.feed(100)
        other = stage.process("other", **QUICK)
        assert lost.wait(60), "the group asks the first member to give a partition away"
        await_true(lambda: local.events("assignment_missed"), "the first member notices", 60)
        (missed,) = local.events("assignment_missed")
        assert (len(missed["revoked"]), missed["assigned"]) == (1, [])
        await_true(lambda: other.events("live"), "the second member takes over", 60)
        await_true(lambda: len(local.partitions()) == 1, "the first member gets the other one again", 60)
        stage.feed(100)
        stage.await_all()
        assert not local.events("failed", "lost")
        assert len(local.events("assignment_missed")) == 1
    stage.verify()
