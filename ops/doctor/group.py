"""Checks the consumer group."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, Final

from statehold.common.visible import visible_time
from statehold.config.common.units import format_duration
from statehold.ops.doctor.case import Case, NotAsked
from statehold.ops.doctor.report import Finding, FindingsOf
from statehold.ops.remote import local_services

#: Kafka's own default, in milliseconds
_USUAL_DELAY: Final = 3000


class FailedPartitions:
    name: ClassVar = "failed-partitions"
    looks_at: ClassVar = (
        "the status of each instance: on this machine, and by the ops servers that the members advertise"
    )
    fails: ClassVar = "a partition has failed: it is paused until you retry it, and its lag grows"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = FindingsOf(self), case.names
        failed = {
            row["partition"]: (row, status)
            for status in case.statuses
            for row in status["partitions"]
            if row["phase"] == "failed"
        }
        for partition, (row, status) in sorted(failed.items()):
            yield seen.failed(
                f"{names.input}[{partition}]",
                f"failed at position {row.get('position')}, {row.get('lag')} records behind, on {status['instance']}: "
                f"{local_services.cause_of(row)}",
                f"fix the cause, then: statehold retry {partition} --name {names.group}",
            )


class CallsWaiting:
    name: ClassVar = "durable-calls"
    looks_at: ClassVar = "the durable calls of each live partition, by the same status of each instance"
    fails: ClassVar = "another system is down; or as many calls wait as `calls.pending` allows: records wait"
    warns: ClassVar = "calls are dead: their attempts are used up, and they wait for an operator"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names, most = FindingsOf(self), case.names, case.settings.calls.pending
        live = {
            row["partition"]: row["live"] for status in case.statuses for row in status["partitions"] if row.get("live")
        }
        shown = "statehold calls list MODULE:SERVICE"
        for partition, found in sorted(live.items()):
            where, pending = f"{names.input}[{partition}]", found.get("calls") or 0
            since = found.get("calls_since")
            age = f", the oldest since {visible_time(round(since * 1000))}" if since else ""
            if down := found.get("calls_down"):
                why = f"the system behind {', '.join(down)} does not answer; {pending} calls wait{age}"
                yield seen.failed(where, why, f"check that system; then: {shown} --partitions {partition}")
            if pending >= most:
                why = f"{pending} calls wait{age}, as many as calls.pending allows: no record is handled until some end"
                yield seen.failed(where, why, f"{shown} --partitions {partition}; or a higher calls.pending")
            if dead := found.get("calls_dead"):
                fix = f"{shown} --dead --partitions {partition}, then calls retry, discard or fail"
                yield seen.warned(where, f"{dead} calls are dead", fix)


class RebalanceDelay:
    name: ClassVar = "rebalance-delay"
    looks_at: ClassVar = "group.initial.rebalance.delay.ms"
    fails: ClassVar = "-"
    warns: ClassVar = f"more than {_USUAL_DELAY} ms: a start of all instances waits for this long"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        for broker, value in case.setting("group.initial.rebalance.delay.ms").items():
            if int(value) > _USUAL_DELAY:
                yield seen.warned(
                    f"broker {broker}",
                    f"{value} ms: after all instances restart, no record is read for this long",
                    case.set_brokers("group.initial.rebalance.delay.ms", _USUAL_DELAY),
                )


class SessionBounds:
    name: ClassVar = "session-bounds"
    looks_at: ClassVar = "group.session_timeout against the brokers' group.min and max.session.timeout.ms"
    fails: ClassVar = "the brokers reject it: no instance could join"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, group = FindingsOf(self), case.settings.group
        if group.protocol != "classic":
            return
        least = case.setting("group.min.session.timeout.ms")
        most = case.setting("group.max.session.timeout.ms")
        for broker in least:
            low, high = int(least[broker]) / 1000, int(most[broker]) / 1000
            if not low <= group.session_seconds <= high:
                nearest = min(max(group.session_seconds, low), high)
                yield seen.failed(
                    f"broker {broker}",
                    f"allows {format_duration(low)} to {format_duration(high)}, group.session_timeout is "
                    f"{format_duration(group.session_seconds)}",
                    f"group.session_timeout = {nearest:g}",
                )


class Instances:
    name: ClassVar = "instances"
    looks_at: ClassVar = "members of the group against partitions of the input"
    fails: ClassVar = "-"
    warns: ClassVar = "more members than partitions: some are idle"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, count = FindingsOf(self), len(case.topic(case.names.input).partitions)
        members = len(case.group.members)
        if members > count:
            yield seen.warned(
                case.names.group,
                f"{members} members for {count} partitions: {members - count} are idle",
                f"stop some, or: statehold state repartition MODULE:SERVICE --to {members} --why TEXT --yes",
            )


class StaticMembers:
    name: ClassVar = "static-members"
    looks_at: ClassVar = "group.instance_id against the ids of the present members, and those against one another"
    fails: ClassVar = "a live member on another host has the same id: the two would fence each other"
    warns: ClassVar = "a live member on this host has the same id: correct if it is the checked instance itself"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, own = FindingsOf(self), case.settings.group.instance_id
        members = case.group.members
        for name, count in Counter(each.static_id for each in members if each.static_id).items():
            if count > 1:
                yield seen.failed(name, f"{count} members have this group.instance_id", "give each its own")
        here = _addresses()
        for each in members:
            if own and each.static_id == own:
                report = seen.warned if each.host in here else seen.failed
                yield report(
                    own,
                    f"group.instance_id of a live member too: {each.client_id} on {each.host}",
                    "give each instance its own group.instance_id, or none",
                )


class GroupProtocol:
    name: ClassVar = "group-protocol"
    looks_at: ClassVar = "group.protocol against what the brokers support and what the group's members use"
    fails: ClassVar = "the brokers do not have it, or live members use an incompatible assignor"
    warns: ClassVar = "live members use the other protocol: a change needs a rolling restart"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, wanted = FindingsOf(self), case.settings.group.protocol
        if wanted == "consumer":
            yield from self._supported(case, seen)
        group = case.group
        if not group.members:
            return
        if group.kind and group.kind != wanted.upper():
            yield seen.warned(
                case.names.group,
                f"its members use the {group.kind.lower()} protocol, group.protocol is {wanted}",
                "restart the instances one by one with the new setting",
            )
        elif wanted == "classic" and group.assignor not in ("", "cooperative-sticky"):
            yield seen.failed(
                case.names.group,
                f"its members assign by {group.assignor!r}, not by 'cooperative-sticky': a join would be rejected",
                "stop the other applications in this group, or give the service another name or namespace",
            )

    def _supported(self, case: Case, seen: FindingsOf) -> Iterator[Finding]:
        try:
            offered = case.setting("group.coordinator.rebalance.protocols")
        except NotAsked:
            offered = {}
        for broker, value in offered.items():
            if "consumer" not in value.split(","):
                yield seen.failed(
                    f"broker {broker}",
                    f"offers the protocols {value}, group.protocol is consumer",
                    "group.protocol = 'classic', or "
                    + case.set_brokers("group.coordinator.rebalance.protocols", "..."),
                )
        for where, answer in case.spoken.items():
            if not isinstance(answer, str) and answer.finalized.get("group.version", 0) < 1:
                yield seen.failed(
                    where,
                    "the feature group.version is not finalized, group.protocol is consumer",
                    case.kafka("kafka-features", "upgrade --feature group.version=1"),
                )


def _addresses() -> set[str]:
    """Return the addresses by which a broker may see this machine."""
    found = {"127.0.0.1", "::1"}
    try:
        found |= {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return found
    return found


CHECKS = (FailedPartitions, CallsWaiting, RebalanceDelay, SessionBounds, Instances, StaticMembers, GroupProtocol)
