"""`statehold pause` and `statehold resume`: stop and continue partitions, also across restarts."""

from __future__ import annotations

from statehold.messages.command import GO_ON, PAUSE
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions
from statehold.ops.cli.service.command import Timeout, Wait, send


@with_subject
def pause(
    about: Subject,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Pause partitions: they commit what they have handled, and read no more.

    statehold pause order_totals.app:service --partitions 0,3-5

    The processes stay members of the group. The pause is in the partition's last commit record, so that it outlasts
    restarts and rebalances until `statehold resume`. The service gets the command through its
    control topic (`topics create --control`).

    Exit code 0: acknowledged, or sent with --no-wait; 1: not acknowledged in time (it takes effect in its turn).
    """
    send(about, PAUSE, partitions, None, timeout if wait else None, as_json, control=True)


@with_subject
def resume(
    about: Subject,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Resume partitions that `statehold pause` has paused.

    statehold resume order_totals.app:service

    Exit code 0: acknowledged, or sent with --no-wait; 1: not acknowledged in time (it takes effect in its turn).
    """
    send(about, GO_ON, partitions, None, timeout if wait else None, as_json, control=True)
