"""Checks of what the principal may do; it asks what is allowed and tries nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from holdfast.ops.doctor.case import Case, NotAsked
from holdfast.ops.doctor.report import Finding, Seen

#: whoever may do all of this to the cluster may do everything
_SUPER: Final = frozenset({"ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"})


class Rights:
    name: ClassVar = "rights"
    looks_at: ClassVar = "operations that the cluster allows this principal on topics, group and transactional ids"
    fails: ClassVar = "one that the service needs is missing"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = Seen(self), case.names
        needed = {names.input: {"READ"}, **{topic: {"WRITE"} for topic in case.outputs}}
        needed |= {names.increment: {"READ", "WRITE", "DELETE"}, names.full: {"READ", "WRITE", "DELETE"}}
        for topic, wanted in needed.items():
            found = case.topics[topic]
            if found is None:
                continue
            if not found.allowed:
                yield seen.unknown(topic, "the brokers do not tell what is allowed")
            for operation in sorted(wanted - found.allowed if found.allowed else ()):
                yield seen.failed(topic, f"{operation} is not allowed", self._grant(case, "topic", topic, operation))
        allowed = case.group.allowed
        for operation in sorted({"READ", "DESCRIBE"} - allowed if allowed else ()):
            yield seen.failed(
                names.group,
                f"{operation} of the group is not allowed",
                self._grant(case, "group", names.group, operation),
            )
        yield from self._ids(case, seen)

    def _ids(self, case: Case, seen: Seen) -> Iterator[Finding]:
        """No call tells what is allowed on a transactional id: it is worked out from the ACLs, where they are shown."""
        prefix = case.names.transactional_id(0)[:-1]
        mend = self._grant(case, "transactional-id", prefix, "WRITE")
        allowed = case.cluster.allowed()
        if "DESCRIBE" not in allowed:
            # The client shows no ACLs and no error then.
            yield seen.unknown(f"{prefix}*", "ACLs are not shown to this principal (DESCRIBE on the cluster)", mend)
            return
        ours = [acl for acl in case.cluster.acls() if acl.kind == "TRANSACTIONAL_ID" and acl.covers(prefix)]
        if allowed >= _SUPER or (not ours and self._open(case)):
            return
        principal = self._principal(case)
        granted = any(
            acl.permission == "ALLOW" and acl.operation in ("WRITE", "ALL") and acl.principal in (principal, "User:*")
            for acl in ours
        )
        if not principal:
            yield seen.unknown(f"{prefix}*", "which principal a certificate becomes is the brokers' rule", mend)
        elif not granted:
            yield seen.failed(f"{prefix}*", f"no ACL allows {principal} to WRITE with these transactional ids", mend)

    def _open(self, case: Case) -> bool:
        """What no ACL is about may be done by everybody, as far as the brokers tell."""
        try:
            guarded = all(case.setting("authorizer.class.name").values())
        except NotAsked:
            return False
        everyone = case.broker_settings(case.brokers[0].id).get("allow.everyone.if.no.acl.found")
        return not guarded or everyone == "true"

    def _principal(self, case: Case) -> str:
        security = case.settings.kafka.security
        if security.sasl_username:
            return f"User:{security.sasl_username}"
        return "User:ANONYMOUS" if security.protocol == "plaintext" else ""

    def _grant(self, case: Case, kind: str, name: str, operation: str) -> str:
        user = case.settings.kafka.security.sasl_username or "NAME"
        pattern = " --resource-pattern-type prefixed" if kind == "transactional-id" else ""
        return case.kafka(
            "kafka-acls",
            f"--add --allow-principal User:{user} --operation {operation.title()} --{kind} {name}{pattern}",
        )


CHECKS = (Rights,)
