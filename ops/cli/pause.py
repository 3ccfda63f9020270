"""`holdfast pause` and `holdfast resume`: partitions stand still, in the group and across restarts, and go on."""

from __future__ import annotations

from holdfast.command import GO_ON, PAUSE
from holdfast.commanding import Commander
from holdfast.ops.cli.command import Timeout, Wait, follow
from holdfast.ops.cli.show import AsJson
from holdfast.ops.cli.subject import Subject, with_subject
from holdfast.ops.cli.target import Partitions, partitions_of


@with_subject
def pause(
    about: Subject,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    as_json: AsJson = False,
) -> None:
    """Have partitions commit what they have handled, close their transactions and handle no more records.

    holdfast pause examples.clearing.app:service --partitions 0,3-5

    The processes stay members of the group. The pause is in the partition's last mark: whoever owns it later, after a
    restart or a rebalance, stands still as well, until `holdfast resume`. It goes by the control topic.

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
    """Have partitions that `holdfast pause` has stopped go on from where they stand.

    holdfast resume examples.clearing.app:service

    Exit code 0: every mark says so, or sent with --no-wait; 1: not in time (it is obeyed in its turn).
    """
    _switch(GO_ON, about, partitions, timeout if wait else None, as_json)


def _switch(name: str, about: Subject, partitions: str | None, timeout: float | None, as_json: bool) -> None:
    commander = Commander(about.settings, about.names)
    sent = commander.send(name, partitions_of(partitions), control=True)
    follow(commander, name, sent, timeout, as_json)
