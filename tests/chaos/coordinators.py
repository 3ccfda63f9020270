"""Faults that hit a certain broker of three: the one that coordinates the group, or a partition's transactions."""

from __future__ import annotations

from abc import abstractmethod

from tests.chaos.arena import Arena
from tests.chaos.faults import Fault
from tests.chaos.workers import pause
from tests.support.leaders import GROUPS, TRANSACTIONS, leader_of

_FOUND = 30.0
#: frozen for so long before it dies: requests are on their way to it then, and stay without an answer
_FROZEN = 1.0


class CoordinatorKilled(Fault):
    """Frozen in the midst of whatever it is asked, then killed; the others elect another one."""

    holds = (4.0, 12.0)
    allows = 45.0
    brokers = 3

    @abstractmethod
    def key(self, arena: Arena) -> tuple[str, str]:
        """The internal topic, and what is hashed to one of its partitions."""

    def inject(self, arena: Arena) -> None:
        topic, key = self.key(arena)
        self._broker, deadline = 0, arena.history.now() + _FOUND
        while not (self._broker or arena.history.now() > deadline):
            self._broker = leader_of(arena.admin, topic, key)
        self._broker = self._broker or arena.broker(self.victim)
        arena.history.note("coordinator", topic=topic, key=key, broker=self._broker)
        arena.cluster.pause(self._broker)
        pause(_FROZEN)
        arena.cluster.kill(self._broker)

    def heal(self, arena: Arena) -> None:
        arena.start_broker(self._broker)


class GroupCoordinatorKilled(CoordinatorKilled):
    code, title = "F8g", "group coordinator's broker frozen, then killed"

    def key(self, arena: Arena) -> tuple[str, str]:
        return GROUPS, arena.names.group


class TransactionCoordinatorKilled(CoordinatorKilled):
    code, title = "F8t", "transaction coordinator's broker frozen, then killed"

    def key(self, arena: Arena) -> tuple[str, str]:
        return TRANSACTIONS, arena.names.transactional_id(self.victim % arena.shape.partitions)
