"""Keeps a tool the only member of a service's group, so that no worker gets a partition."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import StateholdError, ToolRefused
from statehold.kafka.admin.admin import Admin
from statehold.kafka.admin.groups import find_group
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.telemetry.log_events import Log

#: seconds of one poll: leaving waits for its end
_POLL: Final = 0.05
#: seconds to join, because a group that has just lost its members may take some sessions to settle
_PATIENCE: Final = 60.0
#: seconds for the consumer to leave, and for its thread to end
_CLOSE: Final = 5.0
_END: Final = 10.0


#: a client id of a command begins with this, then the command with '-' for a space, a dot, and the process
_COMMAND: Final = "statehold-"
#: longest session that brokers grant by default under the protocol `consumer`, where no client chooses it
_LONGEST_SESSION: Final = 60.0


class Holder(NamedTuple):
    """A member of the group, for a text."""

    client_id: str
    host: str

    @property
    def command(self) -> str:
        """The command that joined as this member, such as `state repartition`; '' for an instance of the service."""
        name, dot, _ = self.client_id.removeprefix(_COMMAND).partition(".")
        return name.replace("-", " ") if dot and self.client_id.startswith(_COMMAND) else ""

    def __str__(self) -> str:
        command = f"`statehold {self.command}`, " if self.command else ""
        return f"{command}{self.client_id} ({self.host})"


def holders(admin: Admin, group: str) -> list[Holder]:
    """Return the members. Blocks until the group has a coordinator.

    :raises KafkaTrouble: the coordinator does not answer.
    """
    found = find_group(admin.client, group, patience=_PATIENCE)
    return sorted(Holder(member.client_id, member.host) for member in found.members)


def longest_session(settings: Settings) -> float:
    """Return the seconds after which the group has lost a member that was killed."""
    return settings.group.session_seconds if settings.group.protocol == "classic" else _LONGEST_SESSION


class GroupLock:
    """`with GroupLock(...) as hold:` joins the group, and leaves it at the end. Its thread owns the consumer.

    A worker that starts meanwhile joins the group too and moves its generation. The brokers then reject a transaction
    with an older `membership`, and nothing of it is committed.
    """

    def __init__(self, settings: Settings, names: Names, admin: Admin, partitions: int, command: str) -> None:
        """`command`: as its user calls it, such as `state repartition`."""
        self._client_id = f"{_COMMAND}{command.replace(' ', '-')}.{socket.gethostname()}-{os.getpid()}"
        self._names, self._admin, self._wanted = names, admin, set(range(partitions))
        self._settings = settings
        self._owned: set[int] = set()
        self._ready, self._ending = threading.Event(), threading.Event()
        self._metadata: Any = None
        self._trouble: StateholdError | None = None
        self._thread = threading.Thread(target=self._run, name="group-hold", daemon=True)

    def __enter__(self) -> Self:
        """:raises ToolRefused: the group has members. :raises KafkaTrouble: no answer."""
        present = holders(self._admin, self._names.group)
        if present:
            commands = all(each.command for each in present)
            raise ToolRefused(
                f"group {self._names.group!r} has {len(present)} member(s): {', '.join(map(str, present))}. "
                f"{'Wait for the end of that command' if commands else 'Stop the service first'}; a process that was "
                f"killed leaves when its session ends, after at most {longest_session(self._settings):.0f} s. Nothing "
                f"was changed"
            )
        self._thread.start()
        joined = self._ready.wait(_PATIENCE)
        if not joined or self._trouble is not None:
            self.close()
            raise self._trouble or ToolRefused(
                f"group {self._names.group!r} gave this tool partitions {sorted(self._owned)} of "
                f"{len(self._wanted)} within {_PATIENCE:.0f} s: another member has joined. Nothing was changed"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def membership(self) -> Any:
        """Return the group metadata for a transaction's offsets.

        :raises ToolRefused: another member has joined and got a partition.
        """
        if self._trouble is not None:
            raise self._trouble
        return self._metadata

    def close(self) -> None:
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_END)

    # The consumer's thread

    def _run(self) -> None:
        consumer = KafkaGroupConsumer(
            self._settings, self._names, Log(service=self._names.group), client_id=self._client_id
        )
        self._consumer = consumer
        try:
            consumer.subscribe(self)
            while not self._ending.is_set():
                consumer.consume(1, _POLL)
                if self._wanted <= self._owned and not self._ready.is_set():
                    self._metadata = consumer.membership()[0]
                    self._ready.set()
        except StateholdError as error:
            self._trouble = error
            self._ready.set()
        finally:
            consumer.close(_CLOSE)

    def on_assign(self, partitions: Sequence[int]) -> None:
        self._consumer.assign(partitions)
        self._owned |= set(partitions)

    def on_revoke(self, partitions: Sequence[int]) -> None:
        self.on_lost(partitions)
        self._consumer.unassign(partitions)

    def on_lost(self, partitions: Sequence[int]) -> None:
        self._owned -= set(partitions)
        if self._ready.is_set() and not self._ending.is_set():
            self._trouble = ToolRefused(
                f"a member has joined group {self._names.group!r} and partitions {sorted(partitions)} went to it: is "
                f"the service being started? Nothing was committed; stop it and try again"
            )
