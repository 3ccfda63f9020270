"""What passes to librdkafka, and what is refused with its reason."""

from __future__ import annotations

import pytest

from statehold.config import Extra, SettingsError, load
from statehold.config.librdkafka.client_keys import ALLOWED
from statehold.config.librdkafka.extra import key_from_environment
from statehold.config.librdkafka.locked_keys import ALIASES, LOCKED, OWNED
from statehold.config.sources import known_options

PROMISED = (
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "acks",
    "retries",
    "max.in.flight",
    "transactional.id",
    "auto.offset.reset",
    "allow.auto.create.topics",
    "partition.assignment.strategy",
)


@pytest.mark.parametrize("key", sorted({*LOCKED, *PROMISED}))
def test_a_locked_key_is_rejected_with_its_reason(key: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Extra({key: "1"})
    reason = LOCKED[ALIASES.get(key, key)]
    assert str(raised.value).startswith(f"setting kafka.extra.{key}: {key}")
    assert str(raised.value).endswith(f"cannot be set here: it {reason}")


@pytest.mark.parametrize("key", OWNED)
def test_a_key_with_a_setting_of_its_own_names_it_and_it_exists(key: str) -> None:
    with pytest.raises(SettingsError, match=f"has a setting of its own: {OWNED[key]}"):
        Extra({key: "1"})
    assert OWNED[key] in known_options()


@pytest.mark.parametrize("alias", ALIASES)
def test_another_name_of_a_key_is_treated_like_the_key(alias: str) -> None:
    name = ALIASES[alias]
    if name in ALLOWED:
        value = ALLOWED[name].words[0] if ALLOWED[name].words else str(max(ALLOWED[name].low, 1))
        assert dict(Extra({alias: value})) == {name: value}
    else:
        with pytest.raises(SettingsError, match=f"another name of {name}"):
            Extra({alias: "1"})


def test_a_key_that_is_on_no_list_is_rejected_with_the_nearest_one() -> None:
    with pytest.raises(SettingsError, match=r"allow-list .*; did you mean fetch\.wait\.max\.ms\?"):
        Extra({"fetch.wait.ms": "1"})
    with pytest.raises(SettingsError, match="the page Settings of the documentation lists the allowed keys"):
        Extra({"zzz": "1"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fetch.wait.max.ms", "soon"),
        ("fetch.wait.max.ms", "300001"),
        ("log_level", "-1"),
        ("check.crcs", "maybe"),
    ],
)
def test_a_bad_value_is_rejected_with_what_is_allowed(key: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"= '{value}': allowed: "):
        Extra({key: value})


def test_the_three_tables_do_not_overlap() -> None:
    assert not ALLOWED.keys() & LOCKED.keys()
    assert not ALLOWED.keys() & OWNED.keys()
    assert not LOCKED.keys() & OWNED.keys()
    assert not ALIASES.keys() & {*ALLOWED, *LOCKED, *OWNED}
    assert set(ALIASES.values()) <= {*ALLOWED, *LOCKED, *OWNED}


@pytest.mark.parametrize("key", [*ALLOWED, *LOCKED, *OWNED])
def test_every_key_has_an_environment_name(key: str) -> None:
    assert key_from_environment(key.upper().replace(".", "_")) == key


def test_one_key_by_two_names_keeps_the_order_of_precedence() -> None:
    settings = load(
        overrides={"kafka.extra.fetch.message.max.bytes": "2000"},
        env={"STATEHOLD_KAFKA__EXTRA__MAX_PARTITION_FETCH_BYTES": "1000"},
    )
    assert dict(settings.kafka.extra) == {"fetch.message.max.bytes": "2000"}
