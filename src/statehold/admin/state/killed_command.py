"""Waits for the session of a command that was killed while it was the only member of the service's group."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.kafka.admin.admin import Admin
from statehold.kafka.tools.group_lock import holders, longest_session

#: seconds between two looks, and beyond the longest session, because the coordinator notices its end later
_LOOK: Final = 0.3
_SLACK: Final = 10.0

#: (what the command waits for, most seconds) -> a context that reports it
Waiting = Callable[[str, float], AbstractContextManager[None]]


def await_killed_command(settings: Settings, names: Names, waiting: Waiting) -> None:
    """Wait while commands are the only members of the group, at most until the session of a killed one has ended.

    Returns at once for members that are instances of the service; the command itself then refuses.

    :raises KafkaTrouble: the coordinator does not answer.
    """
    admin = Admin(settings, names.group)
    present = holders(admin, names.group)
    if not present or not all(each.command for each in present):
        return
    most = longest_session(settings) + _SLACK
    until = time.monotonic() + most
    with waiting(f"the end of {', '.join(map(str, present))}, or of its session if it was killed,", most):
        while time.monotonic() < until and any(each in present for each in holders(admin, names.group)):
            time.sleep(_LOOK)
