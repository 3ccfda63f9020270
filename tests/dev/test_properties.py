"""The shipped broker settings: a reason at each line, and what three brokers promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehold.dev.properties import Address, compose, parse, render, shipped

FILES = ("broker", "replicas-1", "replicas-3", "development")
THREE = [Address(node, 9000 + node, 9100 + node, 9200 + node, 9000 + node) for node in (1, 2, 3)]


@pytest.mark.parametrize("name", FILES)
def test_every_setting_has_its_reason_above(name: str) -> None:
    reasoned = False
    for line in (shipped() / f"{name}.properties").read_text(encoding="utf-8").splitlines():
        assert reasoned or not line or line.startswith("#"), line
        reasoned = bool(line)  # a blank line ends what a comment speaks of


@pytest.mark.parametrize("name", FILES)
def test_no_setting_is_written_twice(name: str) -> None:
    text = (shipped() / f"{name}.properties").read_text(encoding="utf-8")
    assert len(parse(text)) == sum("=" in line for line in text.splitlines() if not line.startswith("#"))


def test_three_brokers_keep_everything_on_three_with_two_in_sync(tmp_path: Path) -> None:
    settings = compose(THREE[0], THREE, tmp_path, {})

    factors = {key: value for key, value in settings.items() if key.endswith("replication.factor")}
    in_sync = {key: value for key, value in settings.items() if key.endswith(("min.isr", "min.insync.replicas"))}
    assert set(factors.values()) == {"3"}
    assert set(in_sync.values()) == {"2"}
    assert len(factors) >= 3
    assert len(in_sync) >= 2


def test_one_broker_asks_for_no_second(tmp_path: Path) -> None:
    settings = compose(THREE[0], THREE[:1], tmp_path, {})

    assert settings["transaction.state.log.replication.factor"] == "1"
    assert settings["transaction.state.log.min.isr"] == "1"


def test_overrides_win_and_survive_the_file(tmp_path: Path) -> None:
    settings = compose(THREE[0], THREE, tmp_path, {"min.insync.replicas": "1", "num.partitions": "8"})

    assert parse(render(settings)) == settings
    assert (settings["min.insync.replicas"], settings["num.partitions"]) == ("1", "8")


def test_clients_get_the_proxy_s_address_and_other_brokers_do_not(tmp_path: Path) -> None:
    proxied = Address(1, 9001, 9101, 9201, advertised=7777)

    settings = compose(proxied, [proxied], tmp_path, {})

    assert settings["advertised.listeners"] == "CLIENT://127.0.0.1:7777,BROKER://127.0.0.1:9101"
    assert "CLIENT://127.0.0.1:9001" in settings["listeners"]
