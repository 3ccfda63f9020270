"""The settings as plain values: complete by default, frozen, checked, and silent about secrets."""

from __future__ import annotations

import copy
import dataclasses
import re
import subprocess
import sys
from typing import Any

import pytest

from statehold.config import (
    CommitSettings,
    Extra,
    FlowSettings,
    GroupSettings,
    KafkaSettings,
    OutputSettings,
    Secret,
    SecuritySettings,
    ServiceSettings,
    Settings,
    SettingsError,
    SnapshotSettings,
    load,
)
from statehold.config.common.option import options_of
from statehold.config.common.units import parse_duration
from statehold.config.sections.effects_timers_sinks import SinkSettings
from statehold.config.sections.tree import sections
from statehold.errors import StateholdError


def test_the_defaults_are_complete_and_agree_with_each_other() -> None:
    settings = Settings()
    assert settings == Settings()
    assert hash(settings) == hash(Settings())
    assert settings.commit.slow < settings.commit.timeout < settings.commit.transaction_timeout


def test_reading_the_settings_imports_no_large_library() -> None:
    code = (
        "import sys, statehold.config.loading as load, statehold.config.client as client\n"
        "client.consumer(load.load(env={}), 'group')\n"
        "print(sorted({'confluent_kafka', 'pydantic', 'structlog', 'typer', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.commit.interval = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.kafka.extra["debug"] = "all"  # type: ignore[index]


def test_a_variant_is_made_with_replace() -> None:
    settings = Settings()
    changed = dataclasses.replace(settings, service=ServiceSettings(namespace="staging."))
    assert (changed.service.namespace, settings.service.namespace) == ("staging.", "")


@pytest.mark.parametrize("name", sections())
def test_every_setting_is_declared_with_its_meaning_and_every_default_is_legal(name: str) -> None:
    section = sections()[name]
    declared = {entry.name: option for entry, option in options_of(section)}
    nested = {"security", "extra"}
    assert {entry.name for entry in dataclasses.fields(section)} - set(declared) <= nested
    for entry, option in options_of(section):
        assert option.doc.endswith("."), entry.name
        assert option.check(entry.default) == entry.default


@pytest.mark.parametrize(
    ("section", "wrong", "key"),
    [
        (CommitSettings, {"interval": 0.0}, "commit.interval"),
        (CommitSettings, {"interval": float("nan")}, "commit.interval"),
        (CommitSettings, {"interval": True}, "commit.interval"),
        (CommitSettings, {"max_records": 1.5}, "commit.max_records"),
        (SnapshotSettings, {"delta_interval": "sometimes"}, "snapshot.delta_interval"),
        (SnapshotSettings, {"periodic_full": "yes"}, "snapshot.periodic_full"),
        (FlowSettings, {"poll_timeout": 0.2}, "flow.poll_timeout"),
        (OutputSettings, {"compression": "brotli"}, "output.compression"),
        (ServiceSettings, {"namespace": "staging"}, "service.namespace"),
        (ServiceSettings, {"namespace": "sta ging."}, "service.namespace"),
        (ServiceSettings, {"namespace": "."}, "service.namespace"),
        (KafkaSettings, {"bootstrap_servers": "broker"}, "kafka.bootstrap_servers"),
        (KafkaSettings, {"bootstrap_servers": ""}, "kafka.bootstrap_servers"),
        (GroupSettings, {"protocol": "eager"}, "group.protocol"),
    ],
)
def test_a_value_outside_its_limits_is_rejected_by_name(section: Any, wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError, match="allowed: ") as raised:
        section(**wrong)
    assert [problem.key for problem in raised.value.problems] == [key]
    assert isinstance(raised.value, StateholdError)


def test_several_wrong_values_are_reported_at_once() -> None:
    with pytest.raises(SettingsError) as raised:
        CommitSettings(interval=-1, slow=0)
    first, second = str(raised.value).splitlines()
    assert first.startswith("setting commit.interval = -1: allowed: a number of seconds, ")
    assert first.endswith("from 1ms to 1m")
    assert second.startswith("setting commit.slow = 0s: allowed: a number of seconds, ")
    assert second.endswith("from 50ms to 1m")


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"commit": CommitSettings(timeout=30.0)}, "commit.timeout"),
        ({"commit": CommitSettings(interval=11.0)}, "commit.interval"),
        ({"kafka": KafkaSettings(socket_timeout=30.0)}, "kafka.socket_timeout"),
        (
            {"snapshot": SnapshotSettings(delta_interval=0.1), "commit": CommitSettings(interval=0.2)},
            "snapshot.delta_interval",
        ),
        ({"group": GroupSettings(session_timeout=6.0, heartbeat_interval=3.0)}, "group.heartbeat_interval"),
        ({"group": GroupSettings(session_timeout=60.0, max_poll_interval=30.0)}, "group.session_timeout"),
        ({"group": GroupSettings(drain_budget=200.0)}, "group.drain_budget"),
        ({"group": GroupSettings(protocol="consumer", session_timeout=10.0)}, "group.session_timeout"),
        ({"group": GroupSettings(protocol="consumer", heartbeat_interval=1.0)}, "group.heartbeat_interval"),
        ({"flow": FlowSettings(high=100, low=100)}, "flow.low"),
        ({"snapshot": SnapshotSettings(chunk_bytes=950_000)}, "snapshot.chunk_bytes"),
        ({"kafka": KafkaSettings(message_max_bytes=50_000_000)}, "output.queue_bytes"),
    ],
)
def test_values_that_contradict_each_other_are_rejected(given: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(**given)
    assert [problem.key for problem in raised.value.problems] == [key]


_FIX = re.compile(r"Set (\S+) to (.+) (\S+), or (\S+) to (.+) (\S+)$")
_STRICT = {"less than": 0.9, "more than": 1.1, "at least": 1.0, "at most": 1.0}


@pytest.mark.parametrize(
    "given",
    [
        {"commit.timeout": "30s"},
        {"commit.transaction_timeout": "15s"},
        {"commit.interval": "17s"},
        {"kafka.socket_timeout": "45s"},
        {"sink.url": "postgresql://db", "sink.timeout": "40s"},
        {"snapshot.delta_interval": "200ms", "commit.interval": "1s"},
        {"group.session_timeout": "10s", "group.heartbeat_interval": "7s"},
        {"group.session_timeout": "60s", "group.max_poll_interval": "40s"},
        {"group.drain_budget": "200s"},
        {"flow.high": "1000"},
        {"flow.low": "20000"},
        {"snapshot.chunk_bytes": "950000"},
        {"kafka.message_max_bytes": "100KB"},
        {"kafka.message_max_bytes": "50MB"},
    ],
    ids=str,
)
def test_of_two_settings_that_contradict_each_other_the_error_says_how_to_set_either(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as raised:
        load(env={}, overrides=given)
    (problem, *_) = raised.value.problems
    found = _FIX.search(problem.cause)
    assert found is not None, problem
    assert found[1] == problem.key
    for key, relation, text in (found.groups()[:3], found.groups()[3:]):
        size = text.isdecimal()
        number = (float(text) if size else parse_duration(text)) * _STRICT[relation]
        left = [each for each in _remaining(given | {key: str(int(number) if size else number)}) if each == problem.key]
        assert left == [], f"{key} = {number}"


def _remaining(given: dict[str, str]) -> list[str]:
    """The settings that are wrong now."""
    try:
        load(env={}, overrides=given)
    except SettingsError as error:
        return [problem.key for problem in error.problems]
    return []


def test_a_number_of_copies_is_shown_as_a_number() -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(group=GroupSettings(standbys=1), snapshot=SnapshotSettings(delta_interval="off"))
    cause = "must be 0 with snapshot.delta_interval off: a standby replica is built from deltas"
    assert str(raised.value).startswith(f"setting group.standbys = 1: {cause}")


def test_the_consumer_protocol_says_where_its_session_times_are_set() -> None:
    with pytest.raises(SettingsError, match=r"--add-config consumer\.session\.timeout\.ms=10000"):
        Settings(group=GroupSettings(protocol="consumer", session_timeout=10.0))


def test_the_drain_budget_follows_the_poll_interval_up_to_a_cap() -> None:
    assert GroupSettings().drain_seconds == 15.0
    assert GroupSettings(max_poll_interval=20.0).drain_seconds == 4.0
    assert GroupSettings(drain_budget=7.0).drain_seconds == 7.0


def _login(protocol: Any, mechanism: Any, **more: Any) -> SecuritySettings:
    return SecuritySettings(
        protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_username="clearing",
        sasl_password=Secret("hunter2"),
        **more,
    )


def test_production_sends_no_readable_password_and_verifies_its_brokers() -> None:
    plain = KafkaSettings(security=_login("sasl_plaintext", "PLAIN"))
    unverified = KafkaSettings(extra=Extra({"enable.ssl.certificate.verification": False}))
    unnamed = KafkaSettings(extra=Extra({"ssl.endpoint.identification.algorithm": "none"}))
    chatty = KafkaSettings(extra=Extra({"debug": "all"}))
    for kafka in (plain, unverified, unnamed, chatty):
        with pytest.raises(SettingsError, match="development"):
            Settings(kafka=kafka)
        Settings(kafka=kafka, service=ServiceSettings(mode="development"))


def test_a_login_needs_its_protocol_and_its_name() -> None:
    for security in (
        SecuritySettings(sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password=Secret("p")),
        SecuritySettings(protocol="sasl_ssl"),
        SecuritySettings(protocol="sasl_ssl", sasl_mechanism="SCRAM-SHA-512"),
    ):
        with pytest.raises(SettingsError, match=r"kafka\.security\.sasl_mechanism"):
            Settings(kafka=KafkaSettings(security=security))


@pytest.mark.parametrize(
    "url", ["postgresql://bank:hush@db/bank", "host=db password=hush", "postgresql:///b?password=hush"]
)
def test_a_database_is_named_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match=r"sink\.password") as rejected:
        Settings(sink=SinkSettings(url=url))
    assert "hush" not in str(rejected.value)
    for good in ("postgresql://bank@db:5432/bank?options=-csearch_path%3Dx", "host=db user=bank passfile=/x"):
        assert Settings(sink=SinkSettings(url=good)).sink.url == good


def test_no_secret_shows_itself() -> None:
    extra = Extra({"sasl.oauthbearer.config": "hunter3", "ssl.key.pem": "hunter4"})
    security = _login(
        "sasl_ssl", "SCRAM-SHA-512", ssl_key_password=Secret("hunter5"), oauth_client_secret=Secret("hunter6")
    )
    settings = Settings(kafka=KafkaSettings(security=security, extra=extra))
    shown = f"{settings!r} {settings} {security.sasl_password} {extra} {dataclasses.asdict(security)}"
    assert "hunter" not in shown
    assert shown.count("<redacted>") >= 6
    assert settings.kafka.security.sasl_password.reveal() == "hunter2"


def test_a_password_may_be_given_as_plain_text_and_is_wrapped() -> None:
    security = SecuritySettings(sasl_password="hunter2")  # type: ignore[arg-type] # noqa: S106
    assert security.sasl_password == Secret("hunter2")


def test_settings_copy_deeply() -> None:
    assert copy.deepcopy(Settings()) == Settings()
