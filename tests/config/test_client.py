"""The client configurations: librdkafka accepts each one without a warning, and what must hold, holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from statehold.config import (
    CommitSettings,
    Extra,
    GroupSettings,
    KafkaSettings,
    Secret,
    SecuritySettings,
    ServiceSettings,
    Settings,
    SettingsError,
    client,
    load,
)
from statehold.config.librdkafka.client_keys import ALLOWED

Build = Callable[[Settings], client.ClientConfig]

CONSUMERS: dict[str, Build] = {
    "consumer": lambda settings: client.consumer(settings, "clearing"),
    "reader": lambda settings: client.reader(settings, "clearing"),
    "uncommitted reader": lambda settings: client.reader(settings, "clearing", isolation="read_uncommitted"),
}
PRODUCERS: dict[str, Build] = {
    "producer": lambda settings: client.producer(settings, "clearing.trades.0"),
    "snapshot producer": client.full_producer,
    "admin": client.admin,
}
EVERY = CONSUMERS | PRODUCERS
# No process listens there: construction checks every name and value and needs no broker.
NOWHERE = "127.0.0.1:1"


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, list[str]]]:
    logger = logging.Logger("librdkafka")
    handler = _Lines()
    logger.addHandler(handler)
    yield logger, handler.lines
    logger.removeHandler(handler)


def _settings(mode: Any = "production", **kafka: Any) -> Settings:
    return Settings(kafka=KafkaSettings(bootstrap_servers=NOWHERE, **kafka), service=ServiceSettings(mode=mode))


def _construct(name: str, config: client.ClientConfig, logger: logging.Logger) -> None:
    if name in CONSUMERS:
        consumer = confluent_kafka.Consumer(config, logger=logger)
        consumer.poll(0)
        consumer.close()
    elif name == "admin":
        confluent_kafka.admin.AdminClient(config, logger=logger).poll(0)
    else:
        confluent_kafka.Producer(config, logger=logger).poll(0)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_accepts_every_configuration_without_a_warning(
    name: str, protocol: Any, log: tuple[logging.Logger, list[str]]
) -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=NOWHERE),
        group=GroupSettings(protocol=protocol, instance_id="a1"),
    )
    _construct(name, EVERY[name](settings), log[0])
    assert [line for line in log[1] if "CONFWARN" in line] == []


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("profile", ["development", "production"])
def test_librdkafka_accepts_the_shipped_profiles(
    name: str, profile: str, log: tuple[logging.Logger, list[str]]
) -> None:
    settings = load(overrides={"kafka.bootstrap_servers": NOWHERE}, env={}, profile=profile)
    _construct(name, EVERY[name](settings), log[0])
    assert [line for line in log[1] if "CONFWARN" in line] == []


def _complaint(key: str, value: str) -> str:
    """What librdkafka says about one key and value alone; some want another key with them."""
    config = {"bootstrap.servers": NOWHERE, "group.id": "clearing", key: value}
    try:
        confluent_kafka.Consumer(config).close()
    except (confluent_kafka.KafkaException, ValueError) as rejected:
        return str(rejected)
    return ""


@pytest.mark.parametrize("key", ALLOWED)
def test_librdkafka_knows_every_allowed_key_with_these_limits(key: str) -> None:
    allowed = ALLOWED[key]
    numbers = [str(allowed.low), str(allowed.high)] if allowed.high >= allowed.low else ["x"]
    for value in allowed.words or numbers:
        complaint = _complaint(key, value)
        assert "No such configuration property" not in complaint
        assert "Invalid value" not in complaint or key == "debug"
        assert "outside allowed range" not in complaint
    if allowed.high >= allowed.low and allowed.high < 2**31 - 1:
        assert "outside allowed range" in _complaint(key, str(allowed.high + 1))


@pytest.mark.parametrize("name", EVERY)
def test_no_client_creates_topics(name: str) -> None:
    assert EVERY[name](Settings())["allow.auto.create.topics"] is False


@pytest.mark.parametrize("name", CONSUMERS)
def test_no_consumer_commits_by_itself_or_resets_in_silence(name: str) -> None:
    config = CONSUMERS[name](Settings())
    assert config["enable.auto.commit"] is False
    assert config["enable.auto.offset.store"] is False
    assert config["auto.offset.reset"] == "error"
    assert config["isolation.level"] == ("read_uncommitted" if "uncommitted" in name else "read_committed")


def test_a_reader_is_no_member_of_the_services_group() -> None:
    config = client.reader(Settings(group=GroupSettings(protocol="consumer", instance_id="a1")), "clearing")
    assert config["group.id"] == "clearing.reader"
    assert "group.instance.id" not in config
    assert config["enable.partition.eof"] is True


def test_the_classic_protocol_is_cooperative_and_the_other_leaves_times_to_the_broker() -> None:
    classic = client.consumer(Settings(), "clearing")
    assert classic["partition.assignment.strategy"] == "cooperative-sticky"
    assert (classic["session.timeout.ms"], classic["heartbeat.interval.ms"]) == (10_000, 1000)
    newer = client.consumer(Settings(group=GroupSettings(protocol="consumer")), "clearing")
    assert newer["group.protocol"] == "consumer"
    assert not {"partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"} & newer.keys()


def test_a_transactional_producer_waits_shortly_and_ends_before_its_transaction() -> None:
    config = client.producer(Settings(), "clearing.trades.0")
    assert config["transactional.id"] == "clearing.trades.0"
    assert (config["acks"], config["enable.idempotence"]) == ("all", True)
    assert config["partitioner"] == "murmur2_random"
    assert config["retry.backoff.ms"] == 2
    assert config["message.timeout.ms"] < config["transaction.timeout.ms"]
    assert config["queue.buffering.max.messages"] == 200_000
    with pytest.raises(SettingsError, match="would not be transactional"):
        client.producer(Settings(), "")


def test_the_snapshot_producer_has_no_transaction() -> None:
    config = client.full_producer(Settings())
    assert not {"transactional.id", "transaction.timeout.ms"} & config.keys()
    assert config["enable.idempotence"] is True


def test_extra_settings_go_to_the_clients_they_are_for() -> None:
    extra = Extra({"fetch.min.bytes": 7, "batch.size": 50_000, "socket.nagle.disable": False})
    settings = _settings(extra=extra)
    got = {name: extra.keys() & EVERY[name](settings).keys() for name in EVERY}
    assert got == {
        "consumer": {"fetch.min.bytes", "socket.nagle.disable"},
        "reader": {"socket.nagle.disable"},
        "uncommitted reader": {"socket.nagle.disable"},
        "producer": {"batch.size", "socket.nagle.disable"},
        "snapshot producer": {"batch.size", "socket.nagle.disable"},
        "admin": {"socket.nagle.disable"},
    }


def test_a_large_fetch_raises_the_limits_that_it_needs(log: tuple[logging.Logger, list[str]]) -> None:
    settings = _settings(extra=Extra({"max.partition.fetch.bytes": "200000000"}))
    config = client.consumer(settings, "clearing")
    assert config["fetch.max.bytes"] == 200_000_000
    _construct("consumer", config, log[0])


@pytest.mark.parametrize("name", EVERY)
def test_a_login_reaches_every_client(name: str, log: tuple[logging.Logger, list[str]]) -> None:
    security = SecuritySettings(
        protocol="sasl_ssl",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="clearing",
        sasl_password=Secret("hunter2"),
    )
    config = EVERY[name](_settings(security=security))
    assert config["sasl.password"] == "hunter2"
    assert config["sasl.mechanism"] == "SCRAM-SHA-512"
    _construct(name, config, log[0])


@pytest.mark.parametrize("name", EVERY)
def test_a_client_says_which_process_it_is(name: str) -> None:
    settings = Settings(service=ServiceSettings(instance="clearing-1"))
    assert EVERY[name](settings)["client.id"] == "clearing-1"


def test_all_times_and_sizes_reach_the_client_in_its_units() -> None:
    settings = Settings(
        kafka=KafkaSettings(socket_timeout=7.5, connection_timeout=2, statistics_interval=0),
        commit=CommitSettings(timeout=12, transaction_timeout=15.5, max_records=1_000_000),
    )
    config = client.producer(settings, "id")
    assert (config["socket.timeout.ms"], config["socket.connection.setup.timeout.ms"]) == (7500, 2000)
    assert (config["message.timeout.ms"], config["transaction.timeout.ms"]) == (12_000, 15_500)
    assert config["queue.buffering.max.messages"] == 4_000_000
    assert client.consumer(settings, "group")["statistics.interval.ms"] == 0
