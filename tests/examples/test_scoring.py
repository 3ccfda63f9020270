"""examples/scoring over HTTP: killed while it asks a slow and failing scorer; the scorer's own memory verifies it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from examples.feeding import Feed
from examples.scoring import app
from examples.scoring.scorer import Scorer
from tests.examples.around import STATEHOLD, Scene, committed

from statehold.dev import Cluster
from statehold.dev.ports import free_ports
from statehold.testing import Driver
from statehold.worker.calls.event_loop import process_loop


@pytest.fixture
def scorer() -> Iterator[Scorer]:
    made = Scorer(free_ports(1)[0], latency=0.02)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_payment_is_decided_when_its_score_is_there() -> None:
    driver = Driver(app.Scoring)
    for number, cents in enumerate((500, 700, 900)):
        driver.feed(app.Payment(f"p{number}", "ann", cents), key="ann")
    for risk in (10, 90, 10):
        driver.answer(driver.calls[0], app.Score(risk))
    assert [(each.outcome, each.paid) for each in driver.outputs(app.Scoring.decisions)] == [
        ("accepted", 500),
        ("review", 500),
        ("accepted", 1400),
    ]


def asks_and_understands(handler: type[app.Scoring], scores: Mapping[str, int]) -> None:
    driver = Driver(handler, run_calls=True)
    driver.feed(app.Payment("p0", "ann", 500), key="ann")
    driver.feed(app.Payment("p1", "unknown", 500), key="unknown")
    found: dict[str, app.Decision] = {}
    for _ in range(100):  # the scorer fails at random, and each failure doubles the wait
        driver.advance(60)
        found = {each.payment: each for each in driver.outputs(app.Scoring.decisions)}
        if len(found) == 2:
            break
    assert found["p0"].risk == scores["input/0/0/score/0"]
    assert found["p1"].outcome == "unknown card"


def test_the_function_understands_the_scorer(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "URL", f"http://127.0.0.1:{scorer.server_port}/scores")
    asks_and_understands(app.Scoring, scorer.scores)
    process_loop().run(app.client().aclose())
    app.client.cache_clear()


def test_the_function_with_aiohttp_understands_the_scorer(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    from examples.scoring import over_aiohttp

    monkeypatch.setattr(app, "URL", f"http://127.0.0.1:{scorer.server_port}/scores")
    asks_and_understands(over_aiohttp.Scoring, scorer.scores)
    process_loop().run(over_aiohttp.session().close())
    over_aiohttp.session.cache_clear()


def test_the_function_with_grpc_understands_the_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    from examples.scoring import over_grpc
    from examples.scoring.grpc_scorer import GrpcScorer

    scorer = GrpcScorer("127.0.0.1:0", latency=0.02)
    monkeypatch.setattr(over_grpc, "ADDRESS", f"127.0.0.1:{scorer.port}")
    asks_and_understands(over_grpc.Scoring, scorer.scores)
    process_loop().run(over_grpc.channel().close())
    over_grpc.channel.cache_clear()
    scorer.server.stop(None).wait()


def payments(first: int, count: int) -> list[app.Payment]:
    """Few cards, so that what each has paid depends on all its earlier payments and scores."""
    cards = [f"c{number}" for number in range(20)] + ["unknown"]
    return [
        app.Payment(f"p{number}", cards[number % len(cards)], 100 + number) for number in range(first, first + count)
    ]


@pytest.mark.kafka
def test_each_score_counts_once_whenever_the_service_is_killed(kafka: Cluster, tmp_path: Path, scorer: Scorer) -> None:
    scene = Scene(
        kafka.bootstrap_servers,
        tmp_path,
        app.service,
        "decisions",
        SCORER_URL=f"http://127.0.0.1:{scorer.server_port}/scores",
    )
    target, feed, sent = "examples.scoring.app:service", Feed(kafka.bootstrap_servers, scene.names.input), 0
    decisions: list[app.Decision] = []
    decode = msgspec.json.Decoder(app.Decision).decode

    def await_decisions(number: int) -> None:
        def decided() -> bool:
            decisions[:] = [decode(value) for _, _, value in committed(kafka.bootstrap_servers, "decisions")]
            return len(decisions) >= number

        scene.await_true(decided, f"{number} decisions")

    try:
        for _ in range(3):
            process = scene.run(target)
            batch = payments(sent, 200)
            feed.send((each.card.encode(), msgspec.json.encode(each)) for each in batch)
            sent += len(batch)
            await_decisions(sent - 120)
            scene.kill(process)
        process = scene.run(target)
        await_decisions(sent)
        listed = subprocess.run(
            [str(STATEHOLD), "calls", "list", target, "--json"],
            env={**scene.environment, "PYTHONPATH": str(Path(app.__file__).parents[2]), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(listed.stdout) == []
    finally:
        scene.close()
    assert Counter(each.payment for each in decisions) == Counter(f"p{number}" for number in range(sent))
    by_card = defaultdict[str, list[app.Decision]](list)
    for each in decisions:
        by_card[each.card].append(each)
    scores = Counter(scorer.scores.values())
    assert Counter(each.risk for each in decisions if each.risk >= 0) == scores, "each score was used once"
    for card, mine in by_card.items():
        paid, cents = 0, {each.id: each.cents for each in payments(0, sent) if each.card == card}
        assert [each.payment for each in mine] == list(cents), "in the order of the payments"
        for each in mine:
            paid += cents[each.payment] if 0 <= each.risk < app.RISKY else 0
            assert each.paid == paid
