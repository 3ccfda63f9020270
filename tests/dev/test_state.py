"""What a directory remembers, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehold.dev import Cluster, DevError
from statehold.dev.process import Identity
from statehold.dev.properties import Address
from statehold.dev.state import BrokerState, ClusterState, assign_ports, load, save

KNOWN = ClusterState("4.4.0", "an-id", (BrokerState(Address(1, 9092, 1, 2, 9092), Identity(7, "then")),))


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(tmp_path / "new", KNOWN)

    assert load(tmp_path / "new") == KNOWN


def test_a_new_directory_remembers_nothing(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "absent") is None


def test_a_directory_of_another_user_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    with pytest.raises(DevError, match="not empty and holds no cluster: choose another directory"):
        load(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")

    with pytest.raises(DevError, match=r"cluster\.json cannot be read"):
        load(tmp_path)


def test_the_port_of_last_time_is_kept() -> None:
    (again,) = assign_ports(1, None, {}, KNOWN)
    (moved,) = assign_ports(1, 19092, {}, KNOWN)

    assert (again.client, moved.client) == (9092, 19092)
    assert len({again.client, again.internal, again.controller}) == 3


@pytest.mark.parametrize(
    ("brokers", "version", "said"),
    [(3, None, "brokers=1, not 3"), (1, "4.1.0", r"Kafka=4\.4\.0, not 4\.1\.0")],
)
def test_another_cluster_in_the_directory_is_rejected(
    tmp_path: Path, brokers: int, version: str | None, said: str
) -> None:
    save(tmp_path, KNOWN)

    with pytest.raises(DevError, match=f"{said}: .*statehold dev down --delete"):
        Cluster(brokers, directory=tmp_path, version=version)


def test_two_brokers_are_rejected() -> None:
    with pytest.raises(DevError, match="1 or 3 brokers, not 2"):
        Cluster(2)
