"""Every exit code of `statehold`, in one place; docs/cli.md has the table, and a test compares the two.

`Exit` is what a process that serves ends with, so what a supervisor decides by. `Answer` is what a command that asks
or changes something ends with, so what a script decides by. 0 to 2 mean the same in both.
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
    """How `statehold run` ends; an embedding program may use `exit_of`, too."""

    STOPPED = 0
    ERROR = 1
    #: typer's own
    USAGE = 2
    PARTITION_FAILED = 3
    HANDLER_STUCK = 4
    CONFIGURATION = 5
    STUCK = 6
    OUTAGE = 7
    INTERRUPTED = 130


@unique
class Answer(IntEnum):
    """How any other command ends."""

    YES = 0
    NO = 1
    #: typer's own
    USAGE = 2
    NOTHING_RUNS = 3
    DIFFERENT = 4
    WARNED = 10
    UNKNOWN = 11
    FAILED = 12
    INTERRUPTED = 130


#: what each means, and whether a supervisor should start the process again
MEANINGS: Final[dict[Exit, tuple[str, bool]]] = {
    Exit.STOPPED: ("stopped in good order, by a signal or `stop()`", False),
    Exit.ERROR: ("an error that a new start may get over: brokers that do not answer, a bug", True),
    Exit.USAGE: ("a wrong option on the command line", False),
    Exit.PARTITION_FAILED: ("a partition failed, and `failure.on_partition_failure` is `exit`", True),
    Exit.HANDLER_STUCK: ("a handler has not come back from a record (`failure.handler_stuck`, `.stuck_exit`)", True),
    Exit.CONFIGURATION: ("a setting, a name, a topic or a right is wrong or missing: every start would end so", False),
    Exit.STUCK: ("a thread has made no progress for too long and was given up", True),
    Exit.OUTAGE: ("the brokers were away for longer than the service may wait", True),
    Exit.INTERRUPTED: ("Ctrl-C, before the service was there to hear it", False),
}

ANSWERS: Final[dict[Answer, str]] = {
    Answer.YES: "done, or all is well",
    Answer.NO: "an error, a refusal, or not all is well; the line on standard error says which",
    Answer.USAGE: "a wrong option on the command line",
    Answer.NOTHING_RUNS: "`status`, `dev status`: none runs here; `compact`: another run is at work",
    Answer.DIFFERENT: "`snapshot diff`: they differ; `snapshot show --key`, `history`: no such key",
    Answer.WARNED: "`doctor`: at least one warning, nothing failed, everything could be looked at",
    Answer.UNKNOWN: "`doctor`, `txn`: at least one thing could not be looked at, nothing failed",
    Answer.FAILED: "`doctor`: at least one check failed; `txn list`: a transaction hangs",
    Answer.INTERRUPTED: "Ctrl-C",
}


#: no new start gets over these: somebody must change something first
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
    """The code for what ended a service; None for a stop."""
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
