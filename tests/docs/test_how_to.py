"""The how-to pages that show programs and commands: both run as a reader would paste them, on a real broker."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.test_pages import DOCS, PROGRAMS
from tests.support.shell import Shell, steps

from statehold.dev.ports import free_ports

pytestmark = pytest.mark.kafka


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Return a shell with a broker that `statehold dev up` has started."""
    port = free_ports(1)[0]
    made = Shell(
        tmp_path,
        {"127.0.0.1:9092": f"127.0.0.1:{port}"},
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        XDG_STATE_HOME=str(tmp_path / "state"),
        XDG_RUNTIME_DIR=str(tmp_path),
        STATEHOLD_KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}",
    )
    made.run(f"statehold dev up --port {port}")
    yield made
    made.run("statehold dev down --delete")
    made.end()


#: their kind is shown by the others
LONG = {"how-to/operate/scale.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] if page in LONG else [])
        for page in PROGRAMS
        if page.startswith("how-to/")
    ],
)
def test_a_page_shows_what_happens(page: str, shell: Shell) -> None:
    done = steps(DOCS / page)
    assert len(done) > 3
    for step in done:
        shell.do(step)
