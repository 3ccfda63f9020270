"""A service that sends to itself by another key, on a real broker: kills, lag, tools that must not lose a record."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from tests.support import verify
from tests.support.processes import Process, await_true
from tests.support.rekeyed import Transfer, balances, check_moved, ledger
from tests.support.stage import Stage, StageFactory

from statehold import Handler, Record, Service, Table, on
from statehold.admin.backup.backup import backup
from statehold.admin.backup.restore import Restoration, restore
from statehold.admin.inputs.change import change
from statehold.admin.inputs.requested import InputRequest, StartPosition
from statehold.admin.state.repartition import repartition
from statehold.admin.state.stopped_service import StoppedService
from statehold.admin.topics import REKEYED, ServiceTopics
from statehold.common.partitioner import murmur2
from statehold.dev import Cluster
from statehold.errors import ToolRefused, TopicMismatch, TopicMissing
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.topics import TopicAdmin
from statehold.ops.reports.lag import Lags
from statehold.snapshot.state_replacement import ReplacementReason

pytestmark = pytest.mark.kafka

SHORT = {"STATEHOLD_COMMIT__MAX_RECORDS": "100"}
#: so that a kill leaves a gap, which the next owner has to handle in the same order
GAPS = {**SHORT, "STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "30"}
REASON = ReplacementReason(tool="test", who="ann", why="more partitions")
ACCOUNTS = [f"account-{number}" for number in range(40)]


class LedgerProcess(Process):
    command = ("-m", "tests.support.apps.rekeyed")


class Books:
    """A stage whose service is a ledger."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self._random, self.transfers = stage, random.Random(3), list[Transfer]()
        self.handler = ledger(stage.names.input, stage.output)
        stage.names = self.service().names
        (self.topic,) = stage.names.rekeys
        stage.snapshots = verify.Snapshots(stage.servers, stage.names)

    def service(self, **more: str) -> Service:
        names = self.stage.names
        return Service(names.service, input=names.input, handler=self.handler, settings=self.stage.settings(**more))

    def process(self, name: str, **more: str) -> Process:
        return self.stage.processes.setdefault(
            name, LedgerProcess(name, self.stage.directory, self.stage.environment(**more))
        )

    def feed(self, count: int) -> None:
        for _ in range(count):
            source, target = self._random.sample(ACCOUNTS, 2)
            transfer = Transfer(source, target, self._random.randrange(1, 1000))
            self.transfers.append(transfer)
            self.stage.feeder.producer.produce(
                self.stage.names.input, msgspec.json.encode(transfer), f"row-{len(self.transfers)}"
            )
        self.stage.feeder.flush()

    def moved(self) -> list[tuple[str, int]]:
        """Return the outputs of each account, in their order."""
        rows = verify.read_all(self.stage.servers, self.stage.output).values()
        return [(row.key or "", int(row.value)) for each in rows for row in each]

    def await_all(self, seconds: float = 120) -> None:
        """Until every transfer is handled, and what it has sent."""
        self.stage.feeder.fed = len(self.transfers)
        self.stage.await_all(seconds)
        await_true(lambda: len(self.moved()) >= 2 * len(self.transfers), "all movements committed", seconds)

    def leave_unread(self) -> None:
        """Write a movement of nothing to the topic, which waits there as one that the service has sent."""
        key = ACCOUNTS[0].encode()
        producer = Producer({"bootstrap.servers": self.stage.servers})
        producer.produce(self.topic, b'{"amount":0}', key, murmur2(key, self.stage.partitions))
        assert producer.flush(30) == 0

    def drain(self, process: Process) -> None:
        """Run the service until nothing is left."""
        process.start().await_live(*range(self.stage.partitions))
        with closing(Lags(self.stage.settings(), self.stage.names)) as lags:
            await_true(lambda: sum(each.records for each in lags.now()) == 0, "nothing is left")
        assert process.stop() == 0

    def verify(self) -> None:
        check_moved(self.transfers, self.moved())


@pytest.fixture
def books(stages: StageFactory) -> Callable[[int], Books]:
    def made(partitions: int) -> Books:
        found = Books(stages(partitions))
        found.stage.create_topics()
        return found

    return made


def test_topics_are_created_with_the_others(books: Callable[[int], Books]) -> None:
    found = books(3)
    admin = Admin(found.stage.settings(), found.stage.names.group)
    fact = admin.describe([found.topic])[found.topic]
    assert fact is not None
    assert fact.partitions == 3
    settings = TopicAdmin(admin).settings(found.topic)
    assert {name: settings[name] for name in REKEYED} == REKEYED
    topics = ServiceTopics(found.stage.settings(), found.stage.names, [found.stage.output])
    assert {finding.topic: finding.state for finding in topics.check()}[found.topic] == "ok"


def test_money_moves_between_partitions_through_kills(books: Callable[[int], Books]) -> None:
    """Two processes; one after the other is killed while both send to each other's partitions."""
    found = books(4)
    processes = [found.process(name, **GAPS) for name in ("one", "two")]
    for process in processes:
        process.start()
    processes[0].await_live()
    for number in range(4):
        reached = found.stage.position()
        found.feed(800)
        found.stage.await_position(reached + 400)
        processes[number % 2].kill()
        processes[number % 2].start()
    found.await_all()
    for process in processes:
        await_true(partial(process.events, "subscribed"), "it handles signals")
        assert process.stop() == 0
    found.verify()


@pytest.mark.long
def test_lag_counts_what_is_on_its_way_inside(books: Callable[[int], Books]) -> None:
    found = books(2)
    found.feed(50)
    with closing(Lags(found.stage.settings(), found.stage.names)) as lags:
        assert sum(each.records for each in lags.now()) == 50
        process = found.process("behind").start()
        process.await_live(0, 1)
        found.await_all()
        await_true(lambda: sum(each.records for each in lags.now()) == 0, "nothing is left")
        assert set(lags.now()[0].inputs) == set(found.stage.names.inputs)
    assert process.stop() == 0
    found.verify()


def test_a_topic_that_is_missing_or_has_other_partitions_is_named(books: Callable[[int], Books]) -> None:
    found = books(2)
    alone = found.stage.admin
    alone.delete_topics([found.topic])[found.topic].result(30)
    await_true(lambda: found.topic not in found.stage.topics(), "it is deleted")
    with pytest.raises(TopicMissing, match=f"missing on the cluster: {found.topic}"):
        found.service().start()
    found.stage.partitions = 1
    found.stage.create_by_hand(found.topic)
    with pytest.raises(TopicMismatch, match=f"{found.topic} has 1 partitions, {found.stage.names.input} has 2"):
        found.service().start()
    alone.create_partitions([NewPartitions(found.topic, 2)])[found.topic].result(30)


# Tools


def put_back(books: Books, source: Path, **options: object) -> Restoration:
    stage = books.stage
    return restore(stage.settings(), stage.names, books.handler, [stage.output], source, REASON, **options)  # type: ignore[arg-type]


@contextmanager
def elsewhere(books: Books, servers: str, directory: Path) -> Iterator[Books]:
    """The same service on another cluster, whose topics do not exist yet."""
    directory.mkdir()
    found = Books(Stage(servers, directory, books.stage.partitions, of=books.stage))
    found.stage.output, found.handler = books.stage.output, books.handler
    found.transfers = books.transfers
    try:
        yield found
    finally:
        found.stage.close()


def totals(books: Books) -> dict[str, int]:
    """Return the stored totals of all accounts."""
    stage = books.stage
    with closing(StoppedService(stage.settings(), stage.names, books.handler, "test")) as stopped:
        facts = stopped.facts()
        found: dict[str, int] = {}
        for partition in range(stage.partitions):
            tables = stopped.find(stopped.place(partition, stage.partitions, facts)).state.tables
            found |= dict(tables["totals"].items())
    return found


@pytest.fixture(scope="module")
def other_cluster() -> Iterator[str]:
    with Cluster() as cluster:
        yield cluster.bootstrap_servers


def test_a_backup_keeps_what_is_on_its_way(books: Callable[[int], Books], other_cluster: str, tmp_path: Path) -> None:
    """The service is stopped as soon as it has handled the transfers: some movements are sent and not handled."""
    found = books(2)
    found.feed(600)
    process = found.process("one", **SHORT).start()
    process.await_live(0, 1)
    found.stage.feeder.fed = 600
    found.stage.await_position(300)
    process.kill()
    stage = found.stage
    backup(stage.settings(), stage.names, [stage.output], tmp_path / "files", with_input=True)
    with elsewhere(found, other_cluster, tmp_path / "elsewhere") as restored:
        with pytest.raises(ToolRefused, match="continue in an existing topic"):
            put_back(restored, tmp_path / "files", input_at="same")
        put_back(restored, tmp_path / "files")
        process = restored.process("two").start()
        process.await_live(0, 1)
        with closing(Lags(restored.stage.settings(), restored.stage.names)) as lags:
            await_true(lambda: sum(each.records for each in lags.now()) == 0, "nothing is left")
        assert process.stop() == 0
        assert totals(restored) == balances(found.transfers)


def test_states_that_do_not_fit_together_are_not_restored(
    books: Callable[[int], Books], other_cluster: str, tmp_path: Path
) -> None:
    """One partition goes back to its beginning, but the other one has handled what it has sent since."""
    found = books(2)
    found.feed(100)
    process = found.process("one").start()
    process.await_live(0, 1)
    found.await_all()
    assert process.stop() == 0
    stage = found.stage
    backup(stage.settings(), stage.names, [stage.output], tmp_path / "files", with_input=True)
    with (
        elsewhere(found, other_cluster, tmp_path / "elsewhere") as restored,
        pytest.raises(ToolRefused, match=r"has handled this record, which partition 0 sent in transaction \d+ and"),
    ):
        put_back(restored, tmp_path / "files", cut={0: 0}, dry_run=True)


@pytest.mark.long
def test_partitions_are_added_once_nothing_is_on_its_way(books: Callable[[int], Books]) -> None:
    found, size = books(2), 4
    stage, process = found.stage, found.process("one", **SHORT)
    found.feed(400)
    found.drain(process)
    found.verify()
    found.leave_unread()

    def grow() -> None:
        repartition(stage.settings(), stage.names, found.handler, size, murmur2, {}, REASON, quiet=0.1)

    with pytest.raises(ToolRefused, match=f"{re.escape(found.topic)}: records are not processed yet"):
        grow()
    found.drain(process)
    grow()
    stage.partitions = size
    found.feed(400)
    found.drain(process)
    assert len(found.moved()) == 2 * 800 + 1
    assert totals(found) == balances(found.transfers)


def without(topic: str) -> type[Handler[None]]:
    """The release before: it sends nothing."""

    class Silent(Handler[None]):
        totals = Table(key=str, value=int)

        @on(topic, value=Transfer)
        def transfer(self, record: Record[Transfer]) -> None: ...

    return Silent


@pytest.mark.long
def test_a_release_adds_and_removes_one(stages: StageFactory) -> None:
    stage = stages(2)
    settings, kind = stage.settings(), without(stage.names.input)
    before = Service(stage.names.service, input=stage.names.input, handler=kind, settings=settings)
    ServiceTopics(settings, before.names).create("beginning", partitions=2)
    with before:
        await_true(lambda: [each["phase"] for each in before.status()["partitions"]] == ["live"] * 2, "it is live")
    found = Books(stage)
    topics = ServiceTopics(settings, stage.names, [stage.output])
    assert all(finding.good for finding in topics.create("end", partitions=2))
    later = found.service()
    with later:
        await_true(lambda: [each["phase"] for each in later.status()["partitions"]] == ["failed"] * 2, "it has failed")
        failure = later.status()["partitions"][0]["cause"]
    assert f"--add {found.topic}=beginning" in str(failure)
    added = InputRequest(added={found.topic: {-1: StartPosition("beginning")}})
    change(settings, stage.names, found.handler, added, REASON, quiet=0.1)
    process = found.process("with", **SHORT)
    found.feed(300)
    found.drain(process)
    found.verify()
    found.leave_unread()
    removed = InputRequest(removed=(found.topic,))
    with pytest.raises(ToolRefused, match=f"{re.escape(found.topic)}.*(not processed|unread)"):
        change(settings, before.names, kind, removed, REASON, quiet=0.1)
    found.drain(process)
    change(settings, before.names, kind, removed, REASON, quiet=0.1)
    again = Service(stage.names.service, input=before.input, handler=kind, settings=settings)
    with again:
        await_true(lambda: [each["phase"] for each in again.status()["partitions"]] == ["live"] * 2, "it is live")


def test_an_open_transaction_in_the_topic_delays_only_what_is_behind_it(books: Callable[[int], Books]) -> None:
    """The merge by time does not wait for records that a transaction hides, although the broker has them."""
    found = books(2)
    process = found.process("one", STATEHOLD_INPUTS__IDLE="3600").start()
    process.await_live(0, 1)
    stranger = Producer({"bootstrap.servers": found.stage.servers, "transactional.id": f"open-{found.topic}"})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    for partition in range(2):
        stranger.produce(found.topic, b'{"amount":1}', b"account-0", partition)
    stranger.flush(30)
    found.feed(50)
    found.stage.feeder.fed = 50
    found.stage.await_all()
    assert found.moved() == []
    stranger.abort_transaction(30)
