"""A live service asked over HTTP, on a real Kafka: metrics, status, committed state, and who else holds a key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.desk import TOKEN, Desk, Names, Order, a_desk, ask, await_true, create_topics, feed, with_token

from statehold import Record, Service
from statehold.common.partitioner import murmur2
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer
from statehold.telemetry import metrics

pytestmark = pytest.mark.kafka

#: what a service in quiet work shows; the others are about trouble, restores and full snapshots
ALWAYS = [
    metrics.BUILD,
    metrics.READY,
    metrics.PARTITIONS,
    metrics.OUTAGE,
    metrics.STUCK,
    metrics.LOOP_TIME,
    metrics.REBALANCES,
    metrics.PHASE,
    metrics.POSITION,
    metrics.LAG,
    metrics.HIDDEN,
    metrics.RECORD_TIME,
    metrics.RECORDS,
    metrics.OUTPUTS,
    metrics.HANDLER_SECONDS,
    metrics.MAILBOX,
    metrics.TRANSACTIONS,
    metrics.COMMIT_SECONDS,
    metrics.COMMIT_RECORDS,
    metrics.COMMIT_BYTES,
    metrics.TAKEOVER_SECONDS,
    metrics.RESTORE_PREDICTED,
    metrics.KEYS,
    metrics.STATE_BYTES,
    metrics.INCREMENT_BYTES,
    metrics.SINCE_FULL,
]
PEOPLE = [f"person-{number}" for number in range(20)]
ORDERS = [Order(person, amount) for amount in (1, 2, 3) for person in PEOPLE]


class Desks:
    """Instances of one service, each with its ops server; they stop when the test ends."""

    def __init__(self, stack: ExitStack, names: Names) -> None:
        self._stack, self.names = stack, names
        self.services: dict[str, Service] = {}

    def start(self, instance: str, **more: Any) -> str:
        """Returns the URL of its ops server."""
        service = a_desk(self.names, instance, **with_token(state="on", **more))
        if not self.services:
            create_topics(service)
        self.services[instance] = service
        url = self._stack.enter_context(OpsServer(service)).url
        self._stack.enter_context(service)
        return url

    def held(self, instance: str) -> set[int]:
        return {each["partition"] for each in self.services[instance].status()["partitions"] if each["phase"] == "live"}


@pytest.fixture
def desks(kafka: Cluster) -> Iterator[Desks]:
    with ExitStack() as stack:
        yield Desks(stack, Names.new(kafka.bootstrap_servers))


def owners(desks: Desks, first: str, second: str) -> dict[int, str]:
    """The URL of each partition's owner, once either instance has one."""

    def one_each() -> dict[int, str]:
        urls = dict.fromkeys(desks.held("one"), first)
        also = dict.fromkeys(desks.held("two"), second)
        return urls | also if len(urls) == len(also) == 1 and not urls.keys() & also.keys() else {}

    return dict(await_true(one_each, "each has one"))


def get(url: str, path: str) -> Any:
    reply = ask(url, path, TOKEN)
    assert reply.status == 200, reply
    return reply.json


def orders(url: str, person: str) -> int:
    """Those that have committed; 0 while the key is not there."""
    reply = ask(url, f"/state/accounts/{person}", TOKEN)
    return int(reply.json["value"]["orders"]) if reply.status == 200 else 0


def series(url: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples by family, as Prometheus would read them."""
    found = text_string_to_metric_families(ask(url, "/metrics").body.decode())
    return {
        name: [(sample.labels, sample.value) for sample in family.samples]
        for family in found
        for name in {family.name, *(f"{family.name}_total" for _ in range(family.type == "counter"))}
    }


def test_a_live_service_reports_its_metrics_and_status(desks: Desks) -> None:
    url = desks.start("one")
    feed(desks.names, ORDERS)
    await_true(lambda: ask(url, "/ready").status == 200 and desks.held("one") == {0, 1}, "both partitions are live")
    await_true(lambda: sum(value for _, value in series(url).get("statehold_records_processed_total", [])) == 60, "60")
    assert ask(url, "/live").status == ask(url, "/startup").status == 200
    await_true(lambda: "statehold_consumer_lag_records" in series(url), "the input's ends are known")
    found = series(url)
    assert {metric.name for metric in ALWAYS} - set(found) == set()
    assert {labels["service"] for labels, _ in found["statehold_partition_phase"]} == {desks.names.service}
    live = [
        (labels["partition"], value)
        for labels, value in found["statehold_partition_phase"]
        if labels["phase"] == "live"
    ]
    assert live == [("0", 1.0), ("1", 1.0)]
    await_true(lambda: all(value == 0 for _, value in series(url)["statehold_consumer_lag_records"]), "no lag is left")

    reported = get(url, "/status")
    assert (reported["service"], reported["url"], reported["ready"]) == (desks.names.service, url, True)
    assert sum(each["live"]["records"] for each in reported["partitions"]) == 60
    assert sum(each["live"]["commit_record"]["keys"] for each in reported["partitions"]) == len(PEOPLE) * 4
    data = get(url, "/console/data")
    assert [event["event"] for event in data["events"]].count("live") == 2
    newest = data["events"][-1]["number"]
    assert get(url, f"/console/data?event={newest}")["events"] == []
    assert {each["client"] for each in data["members"]} <= {f"{desks.names.service}@{url}"}


def test_state_as_committed(desks: Desks) -> None:
    url = desks.start("one")
    feed(desks.names, ORDERS)
    await_true(lambda: desks.held("one") == {0, 1}, "both partitions are live")
    await_true(lambda: orders(url, "person-7") == 3, "all three orders committed")
    reply = get(url, "/state/accounts/person-7")
    home = murmur2(b"person-7", 2)
    assert reply["key"] == "person-7"
    assert reply["value"] == {"total": 6, "orders": 3}
    assert reply["partition"] == home
    assert reply["position"] > 0
    assert get(url, "/state/by_size/%5B%22person-7%22,2%5D")["value"] == 1
    await_true(lambda: len(get(url, "/state/accounts?limit=1000")["rows"]) == 20, "every account")
    page = get(url, "/state/accounts?prefix=person-1&limit=4")
    assert [row["key"] for row in page["rows"]] == ["person-1", "person-10", "person-11", "person-12"]
    assert (page["truncated"], page["elsewhere"]) == (True, [])
    assert get(url, "/state/accounts?prefix=nobody")["rows"] == []
    assert get(url, "/state")["tables"]["accounts"] == {"key": "str", "value": "Account"}

    for path, status, word in (
        ("/state/accounts/nobody", 404, "no key"),
        ("/state/accnts/person-1", 404, "there are accounts, by_size"),
        ("/state/by_size/person-1", 400, "no key"),
        ("/state/by_size?prefix=p", 400, "str and bytes"),
        ("/state/accounts?limit=0", 400, "from 1 to 1000"),
        ("/state/accounts?limit=1001", 400, "from 1 to 1000"),
        ("/state/accounts/a/b", 400, "%2F"),
        ("/state/accounts/person-7?partition=x", 400, "number"),
    ):
        refused = ask(url, path, TOKEN)
        assert (refused.status, word in refused.json["error"]) == (status, True), refused
    assert ask(url, "/state/accounts/person-7").status == 401


def reported(url: str, partition: int) -> dict[str, Any]:
    """The status of a partition; empty while it is not here."""
    here = get(url, "/status")["partitions"]
    return next((each for each in here if each["partition"] == partition), {})


def test_nothing_uncommitted_is_seen_and_it_answers_while_the_handler_is_stuck(desks: Desks, tmp_path: Path) -> None:
    class Jammed(Desk):
        """Hangs when it has written, so that there is something uncommitted to be seen."""

        stop = tmp_path / "jam"

        def on_record(self, record: Record[Order]) -> None:
            super().on_record(record)
            await_true(lambda: not self.stop.exists(), "the jam is gone")

    url = desks.start("one", handler=Jammed)
    await_true(lambda: desks.held("one") == {0, 1}, "both partitions are live")
    feed(desks.names, [Order("ann", 5)])
    await_true(lambda: ask(url, "/state/accounts/ann", TOKEN).status == 200, "the first order committed")
    Jammed.stop.touch()
    feed(desks.names, [Order("ann", 7)])
    key = murmur2(b"ann", 2)
    before = reported(url, key)["position"]
    await_true(lambda: reported(url, key).get("lag") == 1, "the second order waits in the handler")
    overview = desks.services["one"].overview
    assert overview is not None
    table = overview.committed()[key].tables["accounts"]
    await_true(lambda: table.written, "it has written to the table")
    assert get(url, "/state/accounts/ann")["value"] == {"total": 5, "orders": 1}
    assert [row["value"] for row in get(url, "/state/accounts?prefix=ann")["rows"]] == [{"total": 5, "orders": 1}]
    assert reported(url, key)["position"] == before
    assert ask(url, "/live").status == 200
    assert ask(url, "/metrics").status == 200
    Jammed.stop.unlink()
    await_true(lambda: get(url, "/state/accounts/ann")["value"] == {"total": 12, "orders": 2}, "and then commits")


def test_a_copy_answers_with_its_age_and_never_older_than_allowed(desks: Desks) -> None:
    first = desks.start("one", standbys=1, replica=20.0)
    feed(desks.names, ORDERS)
    await_true(lambda: desks.held("one") == {0, 1}, "the first has both")
    second = desks.start("two", standbys=1, replica=20.0)
    urls = owners(desks, first, second)
    person = PEOPLE[0]
    path, home = f"/state/accounts/{person}", murmur2(person.encode(), 2)
    here, there = urls[home], urls[1 - home]
    await_true(lambda: ask(there, path, TOKEN).status == 200, "the other has a copy")
    await_true(lambda: get(there, path).get("value") == {"total": 6, "orders": 3}, "of all its orders")
    copied = get(there, path)
    assert (copied["partition"], 0 <= copied["age"] <= 20) == (home, True), copied
    assert "age" not in get(here, path), "the owner's answer is never old"

    feed(desks.names, [Order(person, 10)])
    newer = await_true(lambda: (found := get(there, path))["value"]["orders"] == 4 and found, "the copy follows")
    assert newer["position"] > copied["position"]
    assert newer["transaction"] > copied["transaction"]
    await_true(lambda: ask(there, f"{path}?max_age=0", TOKEN).status == 421, "only the owner is as fresh as that")
    assert ask(there, f"{path}?max_age=x", TOKEN).status == 400
    gone = ask(there, f"/state/accounts/nobody?partition={home}", TOKEN)
    assert (gone.status, gone.json["age"] >= 0) == (404, True), gone
    listed = get(there, f"/state/accounts?prefix={person}")
    assert listed["rows"] == [{"key": person, "value": {"total": 16, "orders": 4}, "partition": home}]
    assert "age" in listed["partitions"][str(home)]
    assert listed["elsewhere"] == []
    (copy,) = get(there, "/status")["standbys"]
    assert (copy["partition"], copy["loading"], copy["age"] >= 0) == (home, None, True)
    shown = ask(there, "/metrics").body.decode()
    assert "statehold_standby_ready{" in shown


def test_which_instance_holds_a_key(desks: Desks) -> None:
    first = desks.start("one")
    feed(desks.names, ORDERS)
    await_true(lambda: desks.held("one") == {0, 1}, "the first has both")
    second = desks.start("two")
    urls = owners(desks, first, second)
    await_true(lambda: ask(first, "/ready").status == ask(second, "/ready").status == 200, "both are ready")
    for person in PEOPLE[:6]:
        home = murmur2(person.encode(), 2)
        here, there = urls[home], urls[1 - home]
        await_true(lambda: orders(here, person) == 3, "all its orders")  # noqa: B023
        await_true(lambda: ask(there, f"/state/accounts/{person}", TOKEN).status == 421, "moved")  # noqa: B023
        away = ask(there, f"/state/accounts/{person}", TOKEN)
        assert (away.json["partition"], away.json["held_by"]["url"]) == (home, here)
        assert home in away.json["held_by"]["partitions"]
        sent_on = ask(there, f"/state/accounts/{person}?redirect=1", TOKEN)
        assert sent_on.status == 307
        assert sent_on.headers["location"].startswith(f"{here}/state/accounts/{person}")
        follow = sent_on.headers["location"].removeprefix(here)
        assert get(here, follow)["value"] == {"total": 6, "orders": 3}
    for url in (first, second):
        rows = get(url, "/state/accounts?limit=1000")
        assert len(rows["elsewhere"]) == 1
    desks.services["two"].stop()
    await_true(lambda: desks.held("one") == {0, 1}, "the first has taken over")
    assert ask(second, "/live").status == 503
    assert [orders(first, person) for person in PEOPLE] == [3] * len(PEOPLE)


def test_an_idle_member_is_ready(desks: Desks) -> None:
    desks.start("one")
    await_true(lambda: desks.held("one") == {0, 1}, "the first has both")
    desks.start("two")
    third = desks.start("three")
    await_true(lambda: ask(third, "/startup").status == 200, "it has joined")
    await_true(
        lambda: sorted(len(service.status()["partitions"]) for service in desks.services.values()) == [0, 1, 1],
        "two have one each, one has none",
    )
    spare = next(service for service in desks.services.values() if not service.status()["partitions"])
    reply = await_true(lambda: (answer := ask(spare.url, "/ready")).status == 200 and answer, "it is ready")
    assert "idle" in reply.json["why"][0]
