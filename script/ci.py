"""Everything that CI proves: the checks, the tests here, and the README's commands in a minimal Debian.

    .ci/run             script/test, its fast tests and some others in the minimal Debian
    .ci/run --long      all tests, also there

The minimal Debian comes first, because in parallel with the tests both exceed their time limits on two cores. The
checks run while it downloads; after them the commands of a user run in a second one. What ran there does not run here
again, but for the files of which it skipped a fast test. The last line is pytest's closing line, or the sum of several
as `N passed, N failed`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from script.bare import ROOT, Machine, Unavailable, machine


def first_commands(page: Path) -> str:
    """Return the commands of the first shell block of a page."""
    found = re.search(r"^```sh\n(.*?)\n```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found, page
    return found[1]


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
#: A smaller demo, because the whole one has run as root; it takes two minutes.
SMALL_DEMO: Final = ("script/demo", "--records", "20000")
#: What the README says in its first block of commands, then a test of what it installs.
INSTALL: Final = ("bash", "-c", f"{first_commands(ROOT / 'README.md')} && statehold --version")
SLOW_HERE: Final = ("-m", "not long and (kafka or root or spark or slow)")
#: by the user who runs them, then by whether all tests run
COMMANDS: Final[dict[str, dict[bool, tuple[tuple[str, ...], ...]]]] = {
    "root": {False: (DEMO, FAST, PARTS), True: (DEMO, ("script/test", "--long", "-q"))},
    "user": {False: (INSTALL, BROKER), True: (INSTALL, SMALL_DEMO, BROKER)},
}
LOGS: Final = ROOT / "build" / "ci"
#: Written after the fast tests have run in the minimal Debian: the files of which it skipped a test.
SKIPPED: Final = LOGS / "skipped"
#: Written after `PARTS` has passed there, so its files need not run here again.
PARTS_PASSED: Final = LOGS / "parts-passed"
COULD_NOT: Final = 75


def in_minimal_debian(who: str, *, long: bool) -> int:
    """Run the commands of this user, `root` or `user`; return how many failed."""
    try:
        with machine(user=who == "user") as fresh:
            return sum(not succeeds(fresh, who, *command) for command in COMMANDS[who][long])
    except Unavailable as error:
        sys.stdout.write(f"bare: the README's commands did not run in a minimal Debian as {who}: {error}\n")
        return COULD_NOT


def succeeds(fresh: Machine, who: str, *command: str) -> bool:
    """Run a command; report it in one line, with the end of its output if it failed."""
    started = time.monotonic()
    with (LOGS / f"output-{who}").open("w+", encoding="utf-8", errors="replace") as output:
        code = fresh.run(*command, stdout=output.fileno())
        output.seek(0)
        lines = output.readlines()
    if command == FAST:
        SKIPPED.write_text("".join(f"{name}\n" for name in skipped(lines)), encoding="utf-8")
    if command == PARTS and code == 0:
        PARTS_PASSED.touch()
    verdict = "ok" if code == 0 else f"FAILED with exit code {code}"
    if code != 0:
        sys.stdout.writelines(lines[-100:])
    seconds = time.monotonic() - started
    sys.stdout.write(f"bare: {verdict}: {' '.join(command)} as {who}, {seconds:.0f} s: {(lines or [''])[-1].strip()}\n")
    sys.stdout.flush()
    return code == 0


def skipped(lines: list[str]) -> list[str]:
    """Return the files of which pytest has skipped a test."""
    found = (re.match(r"SKIPPED \[\d+\] (tests/\S+\.py):\d+", line) for line in lines)
    return sorted({each[1] for each in found if each})


def main(arguments: list[str]) -> int:
    """Run all; the last line of the output is the closing line."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    LOGS.mkdir(parents=True, exist_ok=True)
    if arguments[:1] == ["--bare"]:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return in_minimal_debian(arguments[1], long="--long" in arguments)
    for each in (SKIPPED, PARTS_PASSED):
        each.unlink(missing_ok=True)
    long = "--long" in arguments
    root = start_bare("root", *arguments)
    checks = subprocess.run([ROOT / "script" / "check"], check=False).returncode
    user = start_bare("user", *arguments)
    ends = [code for code in (root.wait(), user.wait()) if code not in (0, COULD_NOT)]
    failed = sum(max(code, 1) for code in ends)  # a signal's is negative
    runs = [run_tests(*arguments, *(() if long else (*SLOW_HERE, *passed_there())))]
    reported = "".join((LOGS / f"bare-{who}").read_text(encoding="utf-8") for who in COMMANDS)
    if not long and (left := fast_here()) is not None:
        sys.stdout.write(runs[-1][1])
        runs.append(run_tests(*left, *arguments))
    sys.stdout.write(reported)
    if checks:
        sys.stdout.write("script/check FAILED: see the beginning\n")
    last, code = verdict(runs, reported, failed + (checks != 0))
    sys.stdout.write(last)
    return code


def passed_there() -> list[str]:
    """Return the options that leave out the files of `PARTS`, if the minimal Debian has run them."""
    return [f"--ignore={name}" for name in PARTS if name.endswith(".py")] if PARTS_PASSED.exists() else []


def fast_here() -> list[str] | None:
    """Return the arguments of the fast tests that must run here, None if all have run in the minimal Debian."""
    if not SKIPPED.exists():
        return ["--fast", "-q"]
    files = SKIPPED.read_text(encoding="utf-8").split()
    return ["--fast", "-q", "-n", "0", *files] if files else None


def verdict(runs: list[tuple[int, str]], reported: str, others: int) -> tuple[str, int]:
    """Return the last line and the exit code.

    `runs` are exit codes and closing lines of pytest here, `reported` has those of the minimal Debian, `others` is the
    number of steps that failed without one.
    """
    code = 1 if others or any(code for code, _ in runs) else 0
    if len(runs) == 1 and not reported:
        return runs[0][1], code
    closing = [line for _, line in runs] + [line for line in reported.splitlines() if line.startswith("bare: ")]
    passed, failed = (sum(int(each) for line in closing for each in re.findall(rf"(\d+) {word}\b", line))
                      for word in ("passed", "failed"))  # fmt: skip
    failed = max(failed, others + sum(code != 0 for code, _ in runs))
    return f"{passed} passed, {failed} failed\n", code


def start_bare(who: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start the part in the minimal Debian; it ends with this process, even if that is killed."""
    with (LOGS / f"bare-{who}").open("wb") as report:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", sys.executable, "-m", "script.ci", "--bare", who, *arguments],
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
