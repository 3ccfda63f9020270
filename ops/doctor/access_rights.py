"""Checks the rights of the principal, without trying an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

from statehold.common.access_rights import GROUP, IDS, Right, principal_of, service
from statehold.kafka.admin.acl_check import UNTOLD, allowed, lacks
from statehold.ops.doctor.case import Case, NotAsked
from statehold.ops.doctor.report import Finding, FindingsOf

#: a principal with all of these on the cluster is an administrator
_SUPER: Final = frozenset({"ALTER", "ALTER_CONFIGS", "CLUSTER_ACTION", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"})


class Rights:
    name: ClassVar = "rights"
    looks_at: ClassVar = "the operations that this principal may do on topics, group and transactional ids"
    fails: ClassVar = "one that the service needs is missing"
    warns: ClassVar = "an optional one is missing"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, rights = FindingsOf(self), service(case.names, case.outputs, case.references)
        operations = allowed(case.admin, rights)
        for right in rights:
            here = operations.get((right.kind, right.name))
            if right.kind == IDS:
                yield from self._ids(case, seen, right)
            elif here == UNTOLD:
                yield seen.unknown(right.name, "the brokers do not report what is allowed")
            elif lacks(right, here):
                report = seen.warned if right.optional else seen.failed
                of_what = " of the group" if right.kind == GROUP else ""
                yield report(right.name, f"{right.operation}{of_what} is not allowed", self._grant(case, right))

    def _ids(self, case: Case, seen: FindingsOf, right: Right) -> Iterator[Finding]:
        """Derive the rights on transactional ids from the ACLs, because no request returns them."""
        prefix, fix = right.name, self._grant(case, right)
        allowed = case.cluster.allowed()
        if "DESCRIBE" not in allowed:
            # The client then returns neither ACLs nor an error.
            yield seen.unknown(f"{prefix}*", "ACLs are not shown to this principal (DESCRIBE on the cluster)", fix)
            return
        ours = [acl for acl in case.cluster.acls() if acl.kind == "TRANSACTIONAL_ID" and acl.covers(prefix)]
        if allowed >= _SUPER or (not ours and self._open(case)):
            return
        principal = principal_of(case.settings)
        granted = any(
            acl.permission == "ALLOW" and acl.operation in ("WRITE", "ALL") and acl.principal in (principal, "User:*")
            for acl in ours
        )
        if not principal:
            yield seen.unknown(f"{prefix}*", "which principal a certificate becomes is the brokers' rule", fix)
        elif not granted:
            yield seen.failed(f"{prefix}*", f"no ACL allows {principal} to WRITE with these transactional ids", fix)

    def _open(self, case: Case) -> bool:
        """Return whether everything without an ACL is allowed, by the brokers' settings."""
        try:
            guarded = all(case.setting("authorizer.class.name").values())
        except NotAsked:
            return False
        everyone = case.broker_settings(case.brokers[0].id).get("allow.everyone.if.no.acl.found")
        return not guarded or everyone == "true"

    def _grant(self, case: Case, right: Right) -> str:
        user = case.settings.kafka.security.sasl_username or "NAME"  # a grant to ANONYMOUS would be wrong
        return case.kafka("kafka-acls", right.rule(f"User:{user}"))


CHECKS = (Rights,)
