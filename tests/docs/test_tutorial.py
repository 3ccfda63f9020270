"""The tutorial's commands run in its order on a real broker, and print what its pages show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.shell import Shell, steps

from statehold.dev.ports import free_ports

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
PAGES = ["build", "kill", "watch", "look", pytest.param("compact", marks=pytest.mark.spark)]

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    directory = tmp_path_factory.mktemp("order-book")
    port = free_ports(1)[0]
    made = Shell(
        directory,
        {"127.0.0.1:9092": f"127.0.0.1:{port}", "statehold dev up": f"statehold dev up --port {port}"},
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        XDG_STATE_HOME=str(directory / "state"),
        XDG_RUNTIME_DIR=str(directory),
        STATEHOLD_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}",
    )
    yield made
    made.run("statehold dev down --delete")
    made.end()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_tutorial_shows_what_happens(page: str, shell: Shell) -> None:
    done = steps(TUTORIAL / f"{page}.md")
    assert len(done) > 3
    for step in done:
        shell.do(step)
