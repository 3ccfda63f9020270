"""A backup as Spark tables, without a cluster and without Spark: the same rows as from the topics it was made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.driver.test_past_states import fed
from tests.driver.test_spark_tables import InMemory, held, rows
from tests.support.handlers import Accounts, Op, fold

from statehold import Handler, Service, Table
from statehold.errors import TableTypeChanged, ToolRefused, UsageError
from statehold.spark.opening import NamedService
from statehold.spark.options import SourceOptions, parse
from statehold.spark.records import CommitRecords, StoredInputs
from statehold.spark.relations import ChangesTable, Points, Relation, StateTable
from statehold.spark.source import StateholdSource, relation_of
from statehold.testing import Driver

#: a driver names its service as its handler
accounts = Service("accounts", input="input", handler=Accounts)


class Other(msgspec.Struct, frozen=True):
    total: str = ""


class OtherCode(Handler[Op]):
    balances = Table(key=str, value=Other)


changed = Service("accounts", input="input", handler=OtherCode)
foreign = Service("ledger", input="input", handler=Accounts)


class Saved:
    """A driver's state, its operations, and a backup of it."""

    def __init__(self, directory: Path) -> None:
        self.driver, self.ops = fed("commit")
        self.directory = directory
        self.driver.save(directory, with_input=True)

    def options(self, code: str = "accounts", /, **options: str) -> SourceOptions:
        service = {"service": f"{__name__}:{code}"} if code else {}
        return parse({"backup": str(self.directory), **service, **options})

    def read(self, **options: str) -> Relation:
        return relation_of(self.options(**options))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("backups") / "night")


def test_every_mode_has_the_rows_of_the_topics(saved: Saved) -> None:
    for mode, kind, options in (
        ("state", StateTable, {"table": "balances"}),
        ("changes", ChangesTable, {"table": "balances"}),
        ("points", Points, {}),
        ("commits", CommitRecords, {}),
        ("inputs", StoredInputs, {}),
    ):
        found = rows(pickle.loads(pickle.dumps(saved.read(mode=mode, **options))))  # noqa: S301 - as Spark does
        assert found
        assert found == rows(kind(InMemory(saved.driver, Accounts, mode=mode, **options))), mode


def test_the_state_at_every_time_is_the_fold_of_the_input_before_it(saved: Saved) -> None:
    commits = rows(saved.read(mode="commits"))
    oldest = rows(saved.read(mode="changes", table="balances"))[0]["time"]
    told = 0
    for commit in commits:
        at = commit["time"].isoformat()
        last = [each for each in commits if each["time"] <= commit["time"]][-1]
        try:
            found = saved.read(table="balances", at=at)
        except ToolRefused as error:
            assert "Stored are positions" in str(error)  # noqa: PT017
            assert commit["time"] < oldest
            continue
        assert held(rows(found)) == fold(saved.ops[: last["position"]])[0]
        told += 1
    assert told > 40


def test_the_records_that_made_a_change_are_in_the_inputs(saved: Saved) -> None:
    inputs = {row["offset"]: msgspec.json.decode(row["value"], type=Op) for row in rows(saved.read(mode="inputs"))}
    for change in rows(saved.read(mode="changes", table="balances")):
        made = [inputs[offset] for offset in range(change["start"], change["position"])]
        assert any(op.account == change["key"] for op in made)


def test_a_backup_names_its_service_itself(saved: Saved) -> None:
    found = rows(relation_of(saved.options("", table="balances")))
    assert {msgspec.json.decode(row["key"]) for row in found} == set(fold(saved.ops)[0])


@pytest.mark.parametrize(
    ("code", "options", "error", "text"),
    [
        (
            "foreign",
            {"table": "balances"},
            UsageError,
            "is a backup of accounts with input, the read names ledger with",
        ),
        ("changed", {"table": "balances"}, TableTypeChanged, r"table 'balances' holds keys .*total: int .*str"),
        ("accounts", {"table": "balance"}, UsageError, "there is no table 'balance' in accounts; there are balances"),
        ("accounts", {"table": "balances", "at": "1969-01-01T00:00:00Z"}, ToolRefused, "Stored are positions"),
        ("accounts", {"table": "balances", "partitions": "3"}, UsageError, "has partitions 0 to 0, not 3"),
        ("accounts", {"mode": "outputs"}, UsageError, "a backup holds state and inputs, no outputs"),
        ("accounts", {"mode": "dead_letters"}, UsageError, "a backup holds state and inputs, no dead letters"),
    ],
)
def test_what_a_backup_cannot_answer_is_an_error_at_load(
    saved: Saved, code: str, options: dict[str, str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        relation_of(saved.options(code, **options))


def test_no_stream_of_a_backup(saved: Saved) -> None:
    given: dict[str, Any] = {"backup": str(saved.directory), "mode": "changes", "table": "balances"}
    source = StateholdSource(given)
    with pytest.raises(UsageError, match=r"a backup does not change: read it with spark\.read"):
        source.streamReader(source.schema())


def test_a_backup_without_its_input_has_no_input_records(tmp_path: Path) -> None:
    driver = Driver(Accounts)
    driver.feed(Op("a", 1))
    driver.save(tmp_path / "alone")
    with pytest.raises(UsageError, match=r"has no input records\. Next: make a backup with .* --with-input"):
        relation_of(parse({"backup": str(tmp_path / "alone"), "mode": "inputs"}))


def test_a_changed_file_is_an_error_and_no_row(tmp_path: Path) -> None:
    saved = Saved(tmp_path / "night")
    good = saved.read(table="balances")
    file = saved.directory / "increment-0.jsonl"
    data = file.read_bytes()
    file.write_bytes(data.replace(b'"value":"', b'"value":"A', 1)[:-1])
    with pytest.raises(UsageError, match=r"increment-0\.jsonl differs from the manifest"):
        saved.read(table="balances")
    with pytest.raises(UsageError, match=r"increment-0\.jsonl differs from the manifest"):
        rows(good)
    (saved.directory / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"is not a complete backup: it has no manifest\.json"):
        saved.read(table="balances")


def test_nothing_connects_to_kafka(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def connected(*_: object) -> None:
        raise AssertionError("a read of a backup needs no cluster")

    monkeypatch.setattr("statehold.spark.opening.topic_view", connected)
    named = NamedService(saved.options(table="balances"))
    assert held(rows(StateTable(named))) == fold(saved.ops)[0]
