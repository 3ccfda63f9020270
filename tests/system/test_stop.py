"""A clean stop under load, and services embedded in another program (proof 5.10; section 3.1)."""

from __future__ import annotations

import logging
import signal
import threading

import pytest
import structlog
from tests.support.apps.tally import tally
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage, StageFactory

from statehold import Service
from statehold.balancer.manager import Manager
from statehold.errors import TopicMissing
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.runtime.wiring import ServiceWiring

pytestmark = pytest.mark.kafka


def test_a_clean_stop_commits_takes_a_full_snapshot_and_leaves_the_next_start_nothing_to_replay(stage: Stage) -> None:
    # Without deltas only a full brings the state back without a replay.
    settings = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off"}
    first = stage.process("first", **settings).await_live(0, 1, 2, 3)
    with stage.load(3000):
        await_true(lambda: stage.position() > 5000, "load")
        assert first.stop() == 0
        assert not stage.group.members()
    assert len(first.events("drained")) == 4
    assert len(first.events("full_written")) == 4
    assert not first.events("aborted", "full_abandoned", "failed")
    drained = {event["partition"]: event["position"] for event in first.events("drained")}
    assert drained == stage.group.positions(stage.names.input)

    second = stage.process("second", **settings).await_live(0, 1, 2, 3)
    assert [event["records"] for event in second.events("replayed")] == [0, 0, 0, 0]
    assert all(event["full"] is not None for event in second.events("restored"))
    assert {event["partition"]: event["position"] for event in second.events("restored")} == drained
    stage.await_all()
    assert second.stop() == 0
    stage.verify()


def test_members_that_stop_at_the_same_time_each_take_their_full_snapshots(stage: Stage) -> None:
    """Each one's leaving moves the generation under the other's last commits."""
    settings = {"STATEHOLD_SNAPSHOT__DELTA_INTERVAL": "off"}
    pair = [stage.process(name, **settings) for name in ("a", "b")]
    pair[0].await_that(lambda: all(len(process.live()) == 2 for process in pair), "two live partitions each")
    with stage.load(3000):
        await_true(lambda: stage.position() > 5000, "load")
        for process in pair:
            process.signal(signal.SIGTERM)
        assert [process.ended() for process in pair] == [0, 0]
    for process in pair:
        kinds = [event["event"] for event in process.events()]
        assert not {"aborted", "full_abandoned", "failed"} & set(kinds[kinds.index("stopping") :])
    heir = stage.process("heir", **settings).await_live(0, 1, 2, 3)
    assert [event["records"] for event in heir.events("replayed")] == [0, 0, 0, 0]
    stage.await_all()
    assert heir.stop() == 0
    stage.verify()


def test_a_clean_stop_ends_with_stopped_whatever_else_is_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that does not answer, and threads that warn while they end, are reported before."""
    leave_group, close = KafkaGroupConsumer.close, ServiceWiring.close

    def unanswered(self: KafkaGroupConsumer, timeout: float, *, leave: bool = False) -> bool:
        leave_group(self, timeout, leave=leave)
        return False

    def warning(self: ServiceWiring) -> None:
        self._log.warning("reference_trouble", cause="a reader ends")
        close(self)

    monkeypatch.setattr(KafkaGroupConsumer, "close", unanswered)
    monkeypatch.setattr(ServiceWiring, "close", warning)
    local = Local(stage)
    with local:
        local.await_live(0, 1, 2, 3)
    assert [event["event"] for event in local.log].count("stopped") == 1
    assert local.log[-1]["event"] == "stopped"
    (silent,) = [event for event in local.events("stopping") if "cause" in event]
    assert "the group coordinator did not answer" in silent["cause"]


def test_services_side_by_side_in_one_process_leave_the_host_alone(stages: StageFactory) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    root = (logging.getLogger().handlers[:], logging.getLogger().level, structlog.is_configured())
    before = threading.active_count()
    pair = [stages(2).create_topics() for _ in range(2)]
    services = [stage.service() for stage in pair]
    for stage in pair:
        stage.feed(2000)
    for service in services:
        service.start()
    try:
        for stage in pair:
            stage.await_all()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        assert (logging.getLogger().handlers[:], logging.getLogger().level, structlog.is_configured()) == root
    finally:
        for service in services:
            service.stop()
    assert services[0].wait(60)
    for stage in pair:
        assert not stage.group.members()
        stage.verify()
    await_true(lambda: threading.active_count() <= before, "the end of every thread")


def test_a_failure_to_start_is_raised_from_start_and_leaves_nothing_running(stages: StageFactory) -> None:
    service = stages(1).service()
    before = threading.active_count()
    with pytest.raises(TopicMissing, match="statehold topics create"):
        service.start()
    assert threading.active_count() <= before
    assert not service.status()["running"]
    service.stop()


def test_a_service_that_ends_at_once_leaves_nothing_running(
    stages: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = stages(1).create_topics().service()
    monkeypatch.setattr(Manager, "run", lambda manager: None)
    monkeypatch.setattr(ServiceWiring, "start", lambda *_: service.wait(0.5))  # so long it may take to get there
    before = threading.active_count()
    service.start()
    assert service.wait(60)
    await_true(lambda: threading.active_count() <= before, "the end of every thread", 60)


def test_a_missing_topic_is_an_error_that_names_the_command_and_is_not_created(stages: StageFactory) -> None:
    """The broker of these tests creates a topic for everybody who lets it (requirement 4.1)."""
    stage = stages(2).create_topics()
    service = Service(
        stage.names.service, input=stage.names.input, handler=tally("absent-" + stage.output), settings=stage.settings()
    )
    with pytest.raises(TopicMissing, match=rf"missing on the cluster: absent-{stage.output}.*statehold topics create"):
        service.start()
    assert f"absent-{stage.output}" not in stage.topics()
    process = stages(2).process("orphan")
    process.await_that(lambda: process.exit_code is not None, "its end")
    assert process.exit_code != 0
    assert "statehold topics create" in process.tail()
