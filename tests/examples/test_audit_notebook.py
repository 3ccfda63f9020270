"""The notebook of an auditor is valid, holds no outputs, and runs; its answers are those of the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from examples.feeding import Feed
from examples.ledger.feed import OVERDRAFT, WATCHED, records, transaction
from examples.running import ServiceProcess, statehold, wait_until
from examples.topics import Progress
from tests.support.brokers import require_spark

from statehold.dev import Cluster

NOTEBOOK = Path(__file__).parents[2] / "examples" / "ledger" / "audit.ipynb"
TARGET = "examples.ledger.app:service"
COUNT = 2_000
#: leaves the answers in a file
LAST = """
import json
answers = {
    "history": [row["after"]["balance"] for row in history],
    "balances": balances,
    "overdrawn": [row["id"] for row in guilty.collect()],
    "explained": explained,
    "outputs": sent.count(),
    "from_files": from_files,
    "compared": {row["account"]: row["balance"] for row in recomputed.collect()},
}
Path(%r).write_text(json.dumps(answers))
"""


def notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def test_the_notebook_is_valid_and_holds_no_outputs() -> None:
    found = notebook()
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert len(code) > 8
    for cell in code:
        compile(cell.source, str(NOTEBOOK), "exec")
        assert (cell.outputs, cell.execution_count) == ([], None), "an output would be of another run"


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_notebook_answers_what_the_records_say(
    kafka_cluster: Callable[[], Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    servers = kafka_cluster().bootstrap_servers
    statehold(servers, f"topics create {TARGET} --start-at beginning --partitions 3")
    ledger = ServiceProcess(TARGET, servers, tmp_path, "ledger", "--set", "commit.max_records=40")
    ledger.start()
    try:
        Feed(servers, "transactions").send(records(COUNT))
        wait_until(lambda: Progress(servers, "ledger", "transactions").position() >= COUNT, "all booked", 120.0, ledger)
        monkeypatch.setenv("STATEHOLD_KAFKA__BOOTSTRAP_SERVERS", servers)
        answers = executed(tmp_path)
    finally:
        ledger.kill()

    balances = dict.fromkeys((transaction(n).account for n in range(1, COUNT + 1)), 0)
    watched = []
    for each in map(transaction, range(1, COUNT + 1)):
        balances[each.account] += each.amount if each.type == "PRIJEM" else -each.amount
        if each.account == WATCHED:
            watched.append(balances[WATCHED])
    assert {int(account): balance for account, balance in answers["compared"].items()} == balances
    assert answers["history"][-1] == answers["balances"][-1] == watched[-1]
    assert set(answers["history"]) <= set(watched)
    assert OVERDRAFT in answers["overdrawn"]
    assert {transaction(number).account for number in answers["overdrawn"]} == {WATCHED}
    assert answers["outputs"] == COUNT
    assert answers["explained"] > 100
    assert len(answers["from_files"]) == 3


def executed(directory: Path) -> Any:
    """Run the notebook in a kernel of its own; return its answers."""
    from nbclient import NotebookClient

    found, answers = notebook(), directory / "answers.json"
    stop = found.cells.pop()
    assert stop.source == "spark.stop()"
    last = nbformat.v4.new_code_cell(LAST % str(answers))  # type: ignore[no-untyped-call]
    found.cells += [last, stop]
    resources = {"metadata": {"path": str(NOTEBOOK.parent)}}
    client = NotebookClient(found, timeout=600, kernel_name="python3", resources=resources)
    client.execute()
    plots = [out for cell in found.cells for out in cell.get("outputs", ()) if "image/png" in out.get("data", {})]
    assert len(plots) == 2
    return json.loads(answers.read_text(encoding="utf-8"))
