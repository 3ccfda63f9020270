"""The tutorial's commands run in its order on a real broker, and print what its pages show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.shell import Shell, steps

from statehold.dev.ports import free_ports

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial"
PAGES = ["build", "kill", "watch", "look", "answer", "audit", "compact"]
#: a page that only reads: the pages after it do not need it
ASIDE = "audit"
#: what a page needs beyond Kafka
MARKS = {ASIDE: [pytest.mark.spark, pytest.mark.long], "compact": [pytest.mark.spark]}

pytestmark = pytest.mark.kafka


class Reader:
    """Reads the pages in their order, each once, in one shell."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._ahead = list(PAGES)

    def read(self, last: str) -> None:
        """Do what the pages say, from the first one that was not read up to `last`; `ASIDE` only if it is the last."""
        while last in self._ahead:
            page = self._ahead.pop(0)
            if page == ASIDE != last:
                continue
            done = steps(TUTORIAL / f"{page}.md")
            assert len(done) > 3
            for step in done:
                self._shell.do(step)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
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
    yield Reader(made)
    made.run("statehold dev down --delete")
    made.end()


@pytest.mark.parametrize("page", [pytest.param(each, marks=MARKS.get(each, [])) for each in PAGES])
def test_a_page_of_the_tutorial_shows_what_happens(page: str, reader: Reader) -> None:
    reader.read(page)
