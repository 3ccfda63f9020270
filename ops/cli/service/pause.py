"""`statehold pause` and `statehold resume`: partitions stand still, in the group and across restarts, and go on."""

from __future__ import annotations

from statehold.admin.commands import Commander
from statehold.messages.command import GO_ON, PAUSE
from statehold.ops.cli.common.output import AsJson
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.service.command import Timeout, Wait, follow


@with_subject
def pause(
    about: Subject,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Have partitions commit what they have handled, close their transactions and handle no more records.

    statehold pause examples.clearing.app:service --partitions 0,3-5

    The processes stay members of the group. The pause is in the partition's last mark: whoever owns it later, after a
    restart or a rebalance, stands still as well, until `statehold resume`. It goes by the control topic.

    Exit code 0: every mark says so, or sent with --no-wait; 1: not in time (it is obeyed in its turn).
    """
    _switch(PAUSE, about, partitions, timeout if wait else None, as_json)


@with_subject
def resume(
    about: Subject,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Have partitions that `statehold pause` has stopped go on from where they stand.

    statehold resume examples.clearing.app:service

    Exit code 0: every mark says so, or sent with --no-wait; 1: not in time (it is obeyed in its turn).
    """
    _switch(GO_ON, about, partitions, timeout if wait else None, as_json)


def _switch(name: str, about: Subject, partitions: str | None, timeout: float | None, as_json: bool) -> None:
    commander = Commander(about.settings, about.names)
    sent = commander.send(name, partitions_of(partitions), control=True)
    follow(commander, name, sent, timeout, as_json)
