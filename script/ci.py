"""Everything that CI proves: the checks, the tests here, and the README's commands in a minimal Debian.

    .ci/run             script/test, and parts of it in the minimal Debian
    .ci/run --long      all tests, also there

The minimal Debian runs in parallel with the tests; its report comes before pytest's closing line, which is the last.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Final

from script.bare import ROOT, Machine, Unavailable, machine

#: The README's two commands. With CI=true a missing Java or broker fails a test instead of skipping it.
DEMO: Final = ("script/demo",)
FAST: Final = ("script/test", "--fast", "-q")
#: A broker; Spark; the pages of the tutorial, which need both.
PARTS: Final = (
    "script/test",
    "-q",
    "-n",
    "2",
    "tests/kafka/test_seek.py",
    "tests/spark/test_session.py",
    "tests/docs/test_tutorial.py",
)
BROKER: Final = ("script/test", "-q", "-n", "0", "tests/kafka/test_seek.py")
TESTS: Final = {False: (FAST, PARTS), True: (("script/test", "--long", "-q"),)}
LOGS: Final = ROOT / "build" / "ci"
COULD_NOT: Final = 75


def in_minimal_debian(*, long: bool) -> int:
    """Run the README's commands as root and as a user; return how many failed."""
    failed = 0
    try:
        with machine() as fresh:
            failed += sum(not succeeds(fresh, "root", *command) for command in (DEMO, *TESTS[long]))
        with machine(user=True) as fresh:
            failed += sum(not succeeds(fresh, "a user without root", *command) for command in (DEMO, BROKER))
    except Unavailable as error:
        sys.stdout.write(f"bare: the README's commands did not run in a minimal Debian: {error}\n")
        return failed or COULD_NOT
    return failed


def succeeds(fresh: Machine, who: str, *command: str) -> bool:
    """Run a command; report it in one line, with the end of its output if it failed."""
    started = time.monotonic()
    with (LOGS / "output").open("w+", encoding="utf-8", errors="replace") as output:
        code = fresh.run(*command, stdout=output.fileno())
        output.seek(0)
        lines = output.readlines()
    verdict = "ok" if code == 0 else f"FAILED with exit code {code}"
    if code != 0:
        sys.stdout.writelines(lines[-100:])
    seconds = time.monotonic() - started
    sys.stdout.write(f"bare: {verdict}: {' '.join(command)} as {who}, {seconds:.0f} s: {(lines or [''])[-1].strip()}\n")
    sys.stdout.flush()
    return code == 0


def main(arguments: list[str]) -> int:
    """Run all; the last line of the output is pytest's closing line."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    LOGS.mkdir(parents=True, exist_ok=True)
    if arguments[:1] == ["--bare"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return in_minimal_debian(long="--long" in arguments)
    with (LOGS / "bare").open("w+", encoding="utf-8") as report:
        # All tests twice at once would be too much for the machine.
        bare = None if "--long" in arguments else start_bare(report, *arguments)
        checks = subprocess.run([ROOT / "script" / "check"], check=False).returncode
        tests, closing = run_tests(*arguments)
        failed = (bare or start_bare(report, *arguments)).wait()
        report.seek(0)
        sys.stdout.write(report.read())
    if checks:
        sys.stdout.write("script/check FAILED: see the beginning\n")
    last, code = verdict(tests, (failed if failed != COULD_NOT else 0) + (checks != 0), closing)
    sys.stdout.write(last)
    return code


def verdict(tests: int, others: int, closing: str) -> tuple[str, int]:
    """Return the last line and the exit code: pytest's closing line unless only other steps failed."""
    if tests == 0 and others:
        passed = closing.partition(" passed")[0].split()[-1]
        return f"{passed} passed, {others} failed\n", 1
    return closing, 1 if tests else 0


def start_bare(report: IO[str], *arguments: str) -> subprocess.Popen[bytes]:
    """Start the part in the minimal Debian; it ends with this process, even if that is killed."""
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "script.ci", "--bare", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=report,
        stderr=subprocess.STDOUT,
    )


def run_tests(*arguments: str) -> tuple[int, str]:
    """Run script/test; pass on its output but for the last line, which is returned with the exit code."""
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", ROOT / "script" / "test", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        last = pass_on(process.stdout, sys.stdout.write)
        return process.wait(), last


def pass_on(output: IO[str], write: Callable[[str], object]) -> str:
    """Write all lines but the last; return that."""
    last = ""
    for line in output:
        if last:
            write(last)
        last = line
    return last


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
