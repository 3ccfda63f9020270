"""Keeps a tool the only member of a service's group, so that no worker gets a partition."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final, Self

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


def members(admin: Admin, group: str) -> list[str]:
    """Return client id and host of each member. Blocks until the group has a coordinator.

    :raises KafkaTrouble: the coordinator does not answer.
    """
    found = find_group(admin.client, group, patience=_PATIENCE)
    return [f"{member.client_id} ({member.host})" for member in found.members]


class GroupLock:
    """`with GroupLock(...) as hold:` joins the group, and leaves it at the end. Its thread owns the consumer.

    A worker that starts meanwhile joins the group too and moves its generation. The brokers then reject a transaction
    with an older `membership`, and nothing of it is committed.
    """

    def __init__(self, settings: Settings, names: Names, admin: Admin, partitions: int) -> None:
        self._names, self._admin, self._wanted = names, admin, set(range(partitions))
        self._settings = settings
        self._owned: set[int] = set()
        self._ready, self._ending = threading.Event(), threading.Event()
        self._metadata: Any = None
        self._trouble: StateholdError | None = None
        self._thread = threading.Thread(target=self._run, name="group-hold", daemon=True)

    def __enter__(self) -> Self:
        """:raises ToolRefused: the group has members. :raises KafkaTrouble: no answer."""
        present = members(self._admin, self._names.group)
        if present:
            raise ToolRefused(
                f"group {self._names.group!r} has {len(present)} member(s): {', '.join(sorted(present))}. Stop the "
                f"service first (one that was killed leaves when its session ends); nothing was changed"
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
        consumer = KafkaGroupConsumer(self._settings, self._names, Log(service=self._names.group))
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
