"""Finds the instance that owns a partition, and its ops server."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from statehold.ports import GroupMember
from statehold.service import Service

_WAIT: Final = 3.0
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class Whereabouts:
    """Caches the group's answer for 5 s. During a rebalance a partition may have no owner."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def holder(self, partition: int) -> GroupMember | None:
        return next((member for member in self._members() if partition in member.partitions), None)

    def others(self) -> list[GroupMember]:
        return [member for member in self._members() if not self._is_us(member)]

    def shown(self, member: GroupMember) -> dict[str, Any]:
        """Describe a member; without a `url` that this machine can reach, `url` is null."""
        url = member.url
        if urlsplit(url).hostname in _LOOPBACK and not self._same_machine(member):
            url = ""
        return {"instance": member.client_id, "host": member.host, "url": url or None, "partitions": member.partitions}

    def _same_machine(self, member: GroupMember) -> bool:
        return any(self._is_us(us) and us.host == member.host for us in self._members())

    def _is_us(self, member: GroupMember) -> bool:
        return bool(self._service.url) and member.url == self._service.url

    def _members(self) -> tuple[GroupMember, ...]:
        overview = self._service.overview
        return overview.members.look(_WAIT) if overview is not None else ()
