"""An embedded service imports no rich and a command none of its tracebacks; a program that uses rich keeps them."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: The service ends because a file is missing. `{before}` is an import of the program.
EMBEDDED = """
import sys, threading
{before}
from statehold import Handler, Service
from statehold.config import load
from statehold.errors import StateholdError

class Echo(Handler[str]):
    def on_record(self, record): pass

settings = load(overrides={{"kafka.security.protocol": "ssl", "kafka.security.ssl_ca_location": "/absent"}})
try:
    Service("echo", input="orders", handler=Echo, settings=settings).run()
except StateholdError as error:
    print(type(error).__name__)
import structlog
print(sorted({{name.split(".")[0] for name in sys.modules}} & {{"rich", "typer", "pygments", "structlog"}}))
import rich.console
print(structlog.dev.rich is not None)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "loaded", "keeps"),
    [("", "['structlog']", "False"), ("import structlog", "['pygments', 'rich', 'structlog']", "True")],
    ids=["plain", "with structlog"],
)
def test_an_embedded_service_imports_no_rich(before: str, loaded: str, keeps: str) -> None:
    """It takes 0.2 s; a program that uses structlog itself keeps its tracebacks by rich."""
    program = EMBEDDED.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[-4:-1] == ["Misconfigured", loaded, keeps], done.stdout


COMMAND = """
import sys
from statehold.ops.cli.entry import main
sys.argv = ["statehold", "explain", "--json", "Misconfigured"]
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
import structlog
sys.stderr.write(str({"rich", "structlog", "pygments"} & sys.modules.keys() == {"rich", "structlog"}))
"""


@pytest.mark.slow
def test_a_command_uses_rich_and_imports_none_of_its_tracebacks() -> None:
    """They and pygments would be a sixth of what a short command computes."""
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == "True", done.stderr


def test_another_thread_may_import_rich_meanwhile() -> None:
    program = """
import sys, threading
from statehold.telemetry.structlog_import import _WithoutRich
sys.meta_path.insert(0, _WithoutRich())
found = []
thread = threading.Thread(target=lambda: found.append(__import__("rich")))
thread.start()
thread.join()
assert found and found[0].__name__ == "rich"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
