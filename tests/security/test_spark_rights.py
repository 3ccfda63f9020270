"""A Spark table needs the rights of the role `reader`; a missing one is an error where Spark plans, with its name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.local_service import Local
from tests.support.secured import Right as Rule
from tests.support.secured import Secured
from tests.support.stage import Stage

from statehold.common.access_rights import Right, rights_of
from statehold.errors import StateholdError
from statehold.spark.opening import NamedService
from statehold.spark.options import parse
from statehold.spark.pushdown import Pushed
from statehold.spark.records import StoredInputs
from statehold.spark.relations import ChangesTable, Relation, StateTable

pytestmark = pytest.mark.kafka


def rule(stage: Stage, right: Right) -> Rule:
    return Rule(user_of(stage), right.operation, right.kind, right.name, right.prefixed)


def user_of(stage: Stage) -> str:
    return f"{stage.names.service}-reader"


@pytest.fixture(scope="module")
def stage(guarded: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A service with some state, and a user who has the rights of a reader."""
    made = Stage(guarded.servers, tmp_path_factory.mktemp("spark-rights"), 2).create_topics()
    with Local(made) as local:
        local.await_live(0, 1)
        made.feed(300, keys=50)
        made.await_all()
    guarded.grant(*(rule(made, right) for right in rights_of("reader", made.names, [made.output])))
    yield made
    made.close()


@pytest.fixture
def options(guarded: Secured, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in (stage.environment() | guarded.scram(user_of(stage))).items():
        monkeypatch.setenv(name, value)
    return {"name": stage.names.service, "input": stage.names.input, "table": "totals"}


def keys(relation: Relation) -> set[tuple[int, str]]:
    return {
        (row["partition"], row["key"])
        for task in relation.tasks
        for batch in relation.read(task, relation.schema, Pushed())
        for row in batch.to_pylist()
    }


def test_a_reader_reads_tables_changes_and_inputs(options: dict[str, str]) -> None:
    found = keys(StateTable(NamedService(parse(options))))
    assert len(found) == 50
    assert keys(ChangesTable(NamedService(parse({**options, "mode": "changes"})))) == found
    del options["table"]
    inputs = StoredInputs(NamedService(parse({**options, "mode": "inputs"})))
    sent = [batch.num_rows for task in inputs.tasks for batch in inputs.read(task, inputs.schema, Pushed())]
    assert sum(sent) == 300


@pytest.mark.parametrize("topic", ["changelog", "snapshot"])
def test_a_missing_right_is_named_before_any_row(
    guarded: Secured, stage: Stage, options: dict[str, str], topic: str
) -> None:
    name = getattr(stage.names, topic)
    (right,) = (
        each
        for each in rights_of("reader", stage.names, [stage.output])
        if each.name == name and each.operation.lower() == "read"
    )
    with guarded.without(rule(stage, right)), pytest.raises(StateholdError) as rejected:
        StateTable(NamedService(parse(options)))
    assert f"{name}: TOPIC_AUTHORIZATION_FAILED" in str(rejected.value)
    assert "`statehold topics acl` prints what each role needs" in str(rejected.value)
