"""Declares every exit code of `statehold`; a test compares the table of docs/reference/cli.md.

`Exit` is for `statehold run`; supervisors decide by it. `Answer` is for all other commands; scripts decide by it.
0 to 2 mean the same in both.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

from statehold.config.common.errors import SettingsError
from statehold.errors import (
    AccessRefused,
    HandlerStuck,
    InstanceTaken,
    OutageTooLong,
    PartitionError,
    SchemaRefused,
    StuckCall,
    TopicMismatch,
    TopicMissing,
    UsageError,
)


@unique
class Exit(IntEnum):
    """Exit codes of `statehold run`; an embedding program may use `exit_of`, too."""

    STOPPED = 0
    ERROR = 1
    #: typer's own
    USAGE = 2
    PARTITION_FAILED = 3
    HANDLER_STUCK = 4
    CONFIGURATION = 5
    STUCK = 6
    OUTAGE = 7
    #: the signal's number: `statehold.health.freeze_guard` ends the process
    FROZEN = 14
    INTERRUPTED = 130


@unique
class Answer(IntEnum):
    """Exit codes of any other command."""

    YES = 0
    NO = 1
    #: typer's own
    USAGE = 2
    NOTHING_RUNS = 3
    DIFFERENT = 4
    UNREADABLE = 5
    WARNED = 10
    UNKNOWN = 11
    FAILED = 12
    INTERRUPTED = 130


#: what each means, and whether a supervisor should start the process again
MEANINGS: Final[dict[Exit, tuple[str, bool]]] = {
    Exit.STOPPED: ("stopped in good order, by a signal or `stop()`", False),
    Exit.ERROR: ("an error that a restart may resolve: brokers that do not answer, a bug", True),
    Exit.USAGE: ("a wrong option on the command line", False),
    Exit.PARTITION_FAILED: ("a partition failed, and `failure.on_partition_failure` is `exit`", True),
    Exit.HANDLER_STUCK: ("a handler call did not return (`failure.handler_stuck`, `.stuck_exit`)", True),
    Exit.CONFIGURATION: ("a setting, a name, a topic or a right is wrong or missing: every start would fail", False),
    Exit.STUCK: ("a thread made no progress for too long and was abandoned", True),
    Exit.OUTAGE: ("the brokers were away for longer than the service may wait", True),
    Exit.FROZEN: ("no Python thread ran for `service.freeze_exit` seconds: C code kept the interpreter's lock", True),
    Exit.INTERRUPTED: ("Ctrl-C, before the service handled signals", False),
}

#: what shells and Kubernetes report for a process that a signal ended: 128 and its number. A supervisor starts it
#: again.
BY_SIGNAL: Final[dict[int, str]] = {
    134: "SIGABRT: a library has called `abort`",
    137: "SIGKILL: a memory limit, or a kill from outside",
    139: "SIGSEGV: C code has used memory that is not its own",
}

ANSWERS: Final[dict[Answer, str]] = {
    Answer.YES: "success, or no problem found",
    Answer.NO: "an error, or a problem was found; standard error names it",
    Answer.USAGE: "a wrong command line: an option that is missing, contradicts another one or cannot be read",
    Answer.NOTHING_RUNS: "`status`, `dev status`: nothing runs here; `compact`: another compaction is running",
    Answer.DIFFERENT: "`snapshot diff`: they differ; `snapshot show --key`, `history`: the key does not exist; "
    "`rehearse`, `shadow`: results differ",
    Answer.UNREADABLE: "`rehearse`, `shadow`: the new code cannot take over the stored state",
    Answer.WARNED: "`doctor`: at least one warning, no failed check, no check skipped",
    Answer.UNKNOWN: "`doctor`, `txn`: at least one check could not run, no failed check",
    Answer.FAILED: "`doctor`: at least one check failed; `txn list`: a transaction hangs",
    Answer.INTERRUPTED: "Ctrl-C",
}


#: no restart resolves these; an operator must change something first
_CONFIGURATION: Final = (
    UsageError,
    SettingsError,
    TopicMissing,
    TopicMismatch,
    AccessRefused,
    SchemaRefused,
    InstanceTaken,
)


def exit_of(error: BaseException | None) -> Exit:  # noqa: PLR0911  one line for each
    """Return the exit code for the error that ended a service; None is a stop."""
    match error:
        case None:
            return Exit.STOPPED
        case HandlerStuck():
            return Exit.HANDLER_STUCK
        case PartitionError():
            return Exit.PARTITION_FAILED
        case StuckCall():
            return Exit.STUCK
        case OutageTooLong():
            return Exit.OUTAGE
        case _ if isinstance(error, _CONFIGURATION):
            return Exit.CONFIGURATION
        case _:
            return Exit.ERROR
