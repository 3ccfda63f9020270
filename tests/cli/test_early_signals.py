"""A stop is no error at any moment: SIGTERM and SIGINT from the first moment of `statehold run` on."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.commands import APP, Commands, wait_until
from tests.support.figures import SEED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc shows which signals a process catches"),
]

#: no process listens on this port
NOWHERE = {"STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def start(commands: Commands) -> subprocess.Popen[str]:
    return subprocess.Popen(
        commands.command("run", "app:service"),
        cwd=commands.directory,
        env=commands.environment | NOWHERE,
        stderr=subprocess.PIPE,
        text=True,
    )


def catches(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(mask >> (number - 1) & 1)


def assert_stopped(process: subprocess.Popen[str], commands: Commands) -> None:
    try:
        _, reported = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, reported
    assert "Traceback" not in reported
    assert not list(Path(commands.environment["XDG_RUNTIME_DIR"]).rglob("*.sock"))


WHILE_A_CALLBACK_RUNS = """
import os, signal, weakref
from statehold.ops.cli.common import early_signals
early_signals.listen()
thing = type("Thing", (), {})()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del thing
early_signals.obey()
print("runs on")
"""


def test_a_signal_in_a_callback_that_cannot_raise_stops_the_process_in_silence() -> None:
    """Such as one of the import system, while a module is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", WHILE_A_CALLBACK_RUNS], check=True, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_signal_stops_the_process_at_any_moment_from_its_start_on(statehold: Commands) -> None:
    """The moments are spread over the imports, the settings, and the search for brokers."""
    chance = random.Random(SEED)
    for number in SIGNALS * 4:
        process = start(statehold)
        # Python itself catches SIGINT before any code runs; the handler of SIGTERM is the second that is set.
        wait_until(lambda process=process: catches(process, signal.SIGTERM), "its handlers")  # type: ignore[misc]
        time.sleep(chance.uniform(0, 0.9))
        process.send_signal(number)
        assert_stopped(process, statehold)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_stops_the_process_while_it_imports_the_service(statehold: Commands, number: signal.Signals) -> None:
    waiting = "import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep(60)\n"
    statehold.write_app(waiting + APP)
    process = start(statehold)
    wait_until((statehold.directory / "begun").exists, "the import")
    process.send_signal(number)
    assert_stopped(process, statehold)


def test_a_module_that_swallows_all_exceptions_cannot_hide_a_signal(statehold: Commands) -> None:
    swallowing = (
        "import time\nfrom pathlib import Path\ntry:\n    Path('begun').touch()\n    time.sleep(60)\n"
        "except BaseException:\n    pass\n"
    )
    statehold.write_app(swallowing + APP)
    process = start(statehold)
    wait_until((statehold.directory / "begun").exists, "the import")
    process.send_signal(signal.SIGTERM)
    assert_stopped(process, statehold)


def test_a_signal_stops_the_process_while_it_connects_to_its_brokers(statehold: Commands) -> None:
    process = start(statehold)
    assert process.stderr is not None
    while '"event": "starting"' not in (line := process.stderr.readline()):
        assert line, "it ended before it had started"
    process.send_signal(signal.SIGTERM)
    assert_stopped(process, statehold)


def test_ctrl_c_within_a_call_of_the_client_library_is_an_interrupt() -> None:
    """Such a call returns as if nothing had been, and the interpreter reports the pair as a SystemError."""
    program = (
        "from statehold.ops.cli import entry, main\n"
        "def app():\n"
        "    raise SystemError('list_offsets returned a result with an exception set') from KeyboardInterrupt()\n"
        "main.app = app\n"
        "entry.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
