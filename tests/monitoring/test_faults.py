"""Each alert fires in a real Prometheus when its fault happens to a live service, and is calm before.

The rules are the shipped expressions; how far they look back, how long they wait and a few limits are shorter.
"""

from __future__ import annotations

import itertools
import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.monitoring.shipped import ALERTS, rules
from tests.support.desk import Desk, Names, Order, a_desk, await_true, create_topics, feed
from tests.support.prometheus import Prometheus, missing

from statehold import Record, Service
from statehold.admin.commands import Commander
from statehold.admin.topics import ServiceTopics
from statehold.api.handler import EffectKey
from statehold.bound.topics import output_topics
from statehold.config.sections.processing import FailureSettings, SnapshotSettings
from statehold.dev import Cluster
from statehold.dev.pytest_plugin import ClusterFactory
from statehold.messages.command import PAUSE, TAKE
from statehold.ops.http.server import OpsServer
from statehold.ops.process.job_metrics import JobMetrics
from statehold.ops.process.shadow_metrics import ShadowMetrics
from statehold.shadow.report import ShadowedPartition, ShadowReport

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is one"),
]

#: limits that a test can reach in seconds; the others are as shipped
LIMITS = {
    "StateholdOutage": 3.0,
    "StateholdLoopStandsStill": 3.0,
    "StateholdBehind": 5.0,
    "StateholdEffectsFail": 0.0,
    "StateholdCommitsSlow": 0.5,
    "StateholdRollbacks": 0.0,
    "StateholdFenced": 0.0,
    "StateholdRebalances": 1.0,
    "StateholdRestoreOverBudget": 0.0,
    "StateholdCompactionOld": 2.0,
}
fired: set[str] = set()


def quick() -> str:
    """Return the shipped rules with short windows and durations, and `LIMITS`."""
    chosen = [
        {**rule, "expr": alert.quick("60s", str(LIMITS.get(alert.name, ""))), "for": "1s"}
        for rule, alert in zip(rules(), ALERTS, strict=True)
    ]
    return json.dumps({"groups": [{"name": "statehold", "rules": chosen}]})  # JSON is YAML


class Effective(Desk):
    """Its side effects fail."""

    def on_record(self, record: Record[Order]) -> None:
        super().on_record(record)
        self.effect(broken, record.value.amount)


def broken(key: EffectKey, amount: int) -> None:
    raise OSError("the other system is away")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with Prometheus(tmp_path_factory.mktemp("monitoring") / "prometheus", quick()) as server:
        yield server


class Night:
    """Instances of one service that Prometheus scrapes."""

    def __init__(self, stack: ExitStack, prometheus: Prometheus, names: Names, folder: Path) -> None:
        self.stack, self.prometheus, self.names, self.folder = stack, prometheus, names, folder
        self.services: dict[str, Service] = {}
        self.servers: dict[str, OpsServer] = {}

    def start(self, instance: str = "one", handler: type[Desk] = Desk, **more: Any) -> Service:
        kind = type("Held", (handler,), {"gate": self.folder / "gate", "jam": self.folder / "jam"})
        service = a_desk(self.names, instance, handler=kind, **more)
        service.settings = replace(service.settings, failure=FailureSettings(handler_slow=0.5))
        if not self.services:
            create_topics(service)
        self.services[instance] = service
        server = self.servers[instance] = self.stack.enter_context(OpsServer(service))
        self.prometheus.scrape(**{f"{self.names.service}-{instance}": server.url})
        self.stack.callback(lambda: self.prometheus.scrape(**{f"{self.names.service}-{instance}": ""}))
        self.stack.enter_context(service)
        # Whatever happens in between: a service that is to stop is not held up by its gates.
        self.stack.callback((self.folder / "jam").unlink, missing_ok=True)
        self.stack.callback((self.folder / "gate").touch)
        return service

    def live(self, *instances: str) -> None:
        def all_live() -> bool:
            rows = [row for name in instances for row in self.services[name].status()["partitions"]]
            return len(rows) == 2 and all(row["phase"] == "live" for row in rows)

        await_true(all_live, "both partitions are live")
        # What increases before the second scrape is no increase to Prometheus.
        series = f'statehold_slow_records_total{{service="{self.names.service}"}}'
        self.prometheus.await_series([f"count_over_time({series}[60s]) > 1"], 240.0)

    def fires(self, alert: str, /, seconds: float = 240.0, **labels: str) -> None:
        self.prometheus.await_alert(alert, seconds, **labels)
        fired.add(alert)

    def feed(self, count: int) -> None:
        feed(self.names, [Order(f"person-{number}", 1) for number in range(count)])


@pytest.fixture
def night(kafka: Cluster, prometheus: Prometheus, tmp_path: Path) -> Iterator[Night]:
    with ExitStack() as stack:
        (tmp_path / "gate").touch()
        yield Night(stack, prometheus, Names.new(kafka.bootstrap_servers), tmp_path)


def test_an_instance_that_is_gone(night: Night) -> None:
    """Down, unowned partitions, and a group that does not settle."""
    night.start("one")
    night.start("two")
    night.live("one", "two")
    service = night.names.service
    with repeatedly(partial(come_and_go, night.names)):
        night.fires("StateholdRebalances", service=service)
    night.live("one", "two")
    night.prometheus.await_calm("StateholdPartitionUnowned", service=service)
    night.servers["two"].close()
    night.fires("StateholdDown", name=f"{service}-two")
    night.fires("StateholdPartitionUnowned", service=service)


def test_a_restore_that_takes_long(night: Night) -> None:
    (night.folder / "gate").unlink()
    night.start()
    service = night.names.service
    night.fires("StateholdTakeoverLong", service=service)
    night.fires("StateholdNotReady", service=service)
    (night.folder / "gate").touch()
    night.live("one")
    night.prometheus.await_calm("StateholdTakeoverLong", service=service)


def test_a_record_that_cannot_be_handled(night: Night) -> None:
    night.start()
    night.live("one")
    night.feed(20)
    producer = Producer({"bootstrap.servers": night.names.servers})
    producer.produce(night.names.input, b"no order", partition=0)
    producer.flush(30)
    service = night.names.service
    night.fires("StateholdPartitionFailed", service=service, partition="0")
    with repeatedly(night.services["one"].retry):  # it is undone again each time
        night.fires("StateholdRollbacks", service=service, partition="0")
    assert not night.prometheus.query(
        f'ALERTS{{alertname="StateholdPartitionFailed",partition="1",service="{service}"}}'
    )


def test_a_handler_that_hangs(night: Night) -> None:
    """Records wait: behind, standing still, slow; and a drain that waits for it holds the manager's loop."""
    first = night.start()
    night.live("one")
    night.feed(50)
    await_true(lambda: sum(row["position"] for row in first.status()["partitions"]) >= 50, "some have committed")
    (night.folder / "jam").touch()
    night.feed(800)
    service = night.names.service
    night.fires("StateholdSlowRecords", service=service)
    night.fires("StateholdStandsStill", service=service)
    night.fires("StateholdBehind", service=service)
    threading.Thread(target=night.services["one"].stop).start()
    night.fires("StateholdLoopStandsStill", service=service)


def test_a_stranger_and_retention(night: Night) -> None:
    service = night.start(snapshot=SnapshotSettings(restore_budget=0.5))
    night.live("one")
    night.feed(50)
    name = night.names.service
    night.fires("StateholdRestoreOverBudget", service=name)
    with holding(night.names):
        night.fires("StateholdOpenTransaction", service=name)
    Producer(
        {"bootstrap.servers": night.names.servers, "transactional.id": service.names.transactional_id(0)}
    ).init_transactions(60)
    night.feed(50)
    night.fires("StateholdFenced", service=name)
    configure(night.names.servers, night.names.input, "retention.ms", "3600000")
    night.fires("StateholdRetentionNear", service=name)  # it is looked at once a minute


def test_a_partition_that_was_paused(night: Night) -> None:
    service = a_desk(night.names)
    ServiceTopics(service.settings, service.names, output_topics(service.handler, service.names)).create(
        "beginning", partitions=2, control=True
    )
    service = night.start()
    night.live("one")
    Commander(service.settings, service.names).send(PAUSE, [1], control=True)
    night.fires("StateholdPaused", service=night.names.service, partition="1")


def test_effects_and_full_snapshots_that_fail(night: Night) -> None:
    service = night.start(handler=Effective)
    night.live("one")
    night.feed(5)
    night.fires("StateholdEffectsFail", service=night.names.service)
    night.feed(2000)
    configure(night.names.servers, service.names.snapshot, "max.message.bytes", "100")
    Commander(service.settings, service.names).send(TAKE, [])
    night.fires("StateholdFullSnapshotsAbandoned", service=night.names.service)


def test_an_outage(kafka_cluster: ClusterFactory, prometheus: Prometheus, tmp_path: Path) -> None:
    """A broker of its own stops answering."""
    cluster = kafka_cluster()
    (tmp_path / "gate").touch()
    with ExitStack() as stack:
        night = Night(stack, prometheus, Names.new(cluster.bootstrap_servers), tmp_path)
        night.start()
        night.live("one")
        name = night.names.service
        for _ in range(5):  # commits that are under way take as long as the broker sleeps
            night.feed(50)
            cluster.pause(1)
            time.sleep(1.5)  # the fault itself
            cluster.resume(1)
            time.sleep(0.5)
        night.fires("StateholdCommitsSlow", service=name)
        cluster.pause(1)
        stack.callback(cluster.resume, 1)
        night.fires("StateholdOutage", service=name)


def test_a_call_that_does_not_come_back(night: Night) -> None:
    """The watchdog watches a call with a short limit: a real one takes minutes."""
    service = night.start()
    night.live("one")
    assert service._shutdown is not None
    with service._shutdown.watch.call("a call", 0.1, overdue=lambda why: None):
        night.fires("StateholdStuckCall", service=night.names.service)


def test_a_compaction_that_fails(night: Night) -> None:
    JobMetrics("clearing", night.folder / "run.prom", None).failed()
    with serving(night.folder) as url:
        night.prometheus.scrape(job=url)
        (night.folder / "metrics").write_text((night.folder / "run.prom").read_text())
        night.fires("StateholdCompactionFailed", service="clearing")
        night.fires("StateholdCompactionOld", service="clearing")
        night.prometheus.scrape(job="")


def test_a_process_that_ends_again_and_again(night: Night) -> None:
    starts = itertools.count(1_700_000_000)
    metrics = night.folder / "metrics"

    def start() -> None:
        fresh = night.folder / "fresh"
        fresh.write_text(f"process_start_time_seconds {next(starts)}\n")
        fresh.replace(metrics)

    start()
    with serving(night.folder) as url:
        night.prometheus.scrape(restarts=url)
        with repeatedly(start):
            night.fires("StateholdRestarts", name="restarts")
        night.prometheus.scrape(restarts="")


def test_a_release_that_does_something_else(night: Night) -> None:
    report = ShadowReport("different", False, 1.0, 0, {}, [ShadowedPartition(0)])
    report.partitions[0].of("table", "totals").add("changed")
    (night.folder / "metrics").write_bytes(ShadowMetrics(night.names.service, lambda: report).exposition("")[0])
    with serving(night.folder) as url:
        night.prometheus.scrape(shadow=url)
        night.fires("StateholdShadowDiffers", service=night.names.service)
        night.prometheus.scrape(shadow="")


def test_a_process_with_too_many_files(night: Night) -> None:
    night.start()
    night.live("one")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (round(used / 0.83), hard))
    try:
        night.fires("StateholdFilesNearLimit", name=f"{night.names.service}-one")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_alert_has_fired() -> None:
    """In the tests above, run as a whole."""
    missing_ones = {alert.name for alert in ALERTS} - fired
    if len(fired) < len(ALERTS) // 2:
        pytest.skip("a part of the file was run")
    assert not missing_ones


def come_and_go(names: Names) -> None:
    """A third member of the group that does not stay."""
    with a_desk(names, "three") as passing:
        time.sleep(1.0)
        assert passing.status()["running"]


@contextmanager
def holding(names: Names) -> Iterator[None]:
    """A stranger's transaction on the input is open."""
    producer = Producer({"bootstrap.servers": names.servers, "transactional.id": f"stranger-{names.service}"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(names.input, b"{}", partition=0)
    producer.flush(30)
    try:
        yield
    finally:
        producer.abort_transaction(60)


@contextmanager
def repeatedly(call: Callable[[], object]) -> Iterator[None]:
    """Once a second."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(1.0):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def configure(servers: str, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource_ = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": servers})
    for future in client.incremental_alter_configs([resource_]).values():
        future.result(30)


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """What node_exporter would do with a file of the textfile collector."""
    handler: Callable[..., SimpleHTTPRequestHandler] = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
