"""For `statehold run tests.support.apps.forking:service`: a handler that starts processes in every way."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import posix
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.support.apps.probed import end_with_the_test

from statehold import Handler, Output, Record, Service, Table


def double(number: int) -> int:
    return number * 2


def _in_pool(method: str) -> Callable[[], Any]:
    def run() -> int:
        context: Any = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(double, 21).result(60)

    return run


def _process() -> Any:
    process = multiprocessing.get_context("fork").Process(target=double, args=(1,))
    process.start()
    process.join()
    return process.exitcode


def _forked() -> str:
    """As many programs do: the child returns from here, too, unless it is rejected."""
    return "child" if os.fork() == 0 else "parent"


def _forked_unseen() -> str:
    """By a reference that was taken before the service has started."""
    child = posix.fork()
    if child == 0:
        return "child"
    return f"exit code {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


def _run() -> str:
    program = [sys.executable, "-c", "print(42)"]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()


def _run_before() -> int:
    """Python forks for this one, because the child calls a function."""
    return subprocess.run(["true"], preexec_fn=os.getpid, check=False).returncode


def _thread() -> Any:
    """On a thread of its own a fork is the user's affair; the child lives on."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        process = threads.submit(_sleeper).result()
    Path(os.environ["PROBE_CHILD"]).write_text(str(process.pid), encoding="utf-8")
    return "started"


def _sleeper() -> Any:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
    process.start()
    return process


class Forking(Handler[str]):
    """Answers with what came of it."""

    ways: ClassVar[dict[str, Callable[[], Any]]] = {
        "fork": _forked,
        "unseen": _forked_unseen,
        "process": _process,
        "pool-fork": _in_pool("fork"),
        "pool-spawn": _in_pool("spawn"),
        "pool-forkserver": _in_pool("forkserver"),
        "run": _run,
        "run-before": _run_before,
        "thread": _thread,
        "plain": lambda: "ok",
    }
    counts = Table(key=str, value=int)
    answers = Output(os.environ.get("PROBE_OUTPUT", "answers"), value=str)

    def on_record(self, record: Record[str]) -> None:
        count = self.counts[record.value] = self.counts.get(record.value, 0) + 1
        try:
            found = str(self.ways[record.value]())
        except Exception as error:  # noqa: BLE001  whatever it is
            found = f"{type(error).__name__}: {error}"
        self.answers.send(f"{record.offset} {count} {record.value}: {found}")


if "PROBE_COMMAND" not in os.environ and multiprocessing.parent_process() is None:
    end_with_the_test()
service = Service(
    os.environ.get("PROBE_NAME", "forking"), input=os.environ.get("PROBE_INPUT", "input"), handler=Forking
)
