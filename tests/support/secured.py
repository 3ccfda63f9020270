"""A broker that rejects clients without a login and operations without an ACL.

`servers` is a listener without a login for the test itself, where every client is a super user. `secure` is SASL_SSL
(SCRAM, PLAIN, OAUTHBEARER), `mutual` is TLS with certificates on both sides. A client of those two has the rights
of its ACLs (StandardAuthorizer).

    with secured(directory) as broker:
        environment = broker.scram("ann")  # STATEHOLD_ variables for a service or command
        broker.allow("ann", "READ", "topic", "orders")
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.support.brokers import started
from tests.support.pki import DAY, Authority, Identity
from tests.support.processes import await_true

from statehold.dev import Cluster
from statehold.dev.ports import HOST, free_ports

_MODULES: Final = "org.apache.kafka.common.security"
#: a quote, a backslash and a space have to pass through every place that quotes
PLAIN_PASSWORD: Final = 'not"for\\every body'  # noqa: S105
PLAIN_USERS: Final = ("ann", "ben")
#: CN=web1,OU=statehold,O=... becomes User:web1; any other certificate keeps its whole name
MAPPING: Final = "RULE:^CN=([^,]+),OU=statehold.*$/$1/,DEFAULT"
_PREFIX: Final = "STATEHOLD_KAFKA__"


class Right(NamedTuple):
    """One ACL: principal, operation and resource, in the words of `kafka-acls` and in any case."""

    user: str
    operation: str
    kind: str
    name: str
    prefixed: bool = False

    @property
    def binding(self) -> AclBinding:
        return AclBinding(
            # The client's library calls the cluster a broker.
            ResourceType["BROKER" if self.kind == "cluster" else self.kind.upper().replace("-", "_")],
            self.name,
            ResourcePatternType.PREFIXED if self.prefixed else ResourcePatternType.LITERAL,
            f"User:{self.user}",
            "*",
            AclOperation[self.operation.upper().replace("-", "_")],
            AclPermissionType.ALLOW,
        )


class Secured:
    """Used from one thread at a time."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.authority = Authority(directory / "pki")
        self.identity = self.authority.issue("broker", "CN=broker")
        self._passwords: dict[str, str] = {}
        self._certificates: dict[str, Identity] = {}
        client, internal, controller, secure, mutual = free_ports(5)
        self.secure, self.mutual = f"{HOST}:{secure}", f"{HOST}:{mutual}"
        ports = {"CLIENT": client, "BROKER": internal, "SECURE": secure, "MUTUAL": mutual}
        reported = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
        self.cluster = Cluster(
            port=client,
            settings={
                "listeners": f"{reported},CONTROLLER://{HOST}:{controller}",
                "advertised.listeners": reported,
                "controller.quorum.voters": f"1@{HOST}:{controller}",
                "listener.security.protocol.map": (
                    "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL"
                ),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": "User:ANONYMOUS",
                "ssl.principal.mapping.rules": MAPPING,
                **self._tls("secure"),
                **self._tls("mutual"),
                "listener.name.mutual.ssl.client.auth": "required",
                **_sasl(),
                **(settings or {}),
            },
        )

    @property
    def servers(self) -> str:
        """The listener without a login: plaintext, every operation is allowed."""
        return self.cluster.bootstrap_servers

    @cached_property
    def admin(self) -> AdminClient:
        """Return an admin client of the listener without a login."""
        return AdminClient({"bootstrap.servers": self.servers, "allow.auto.create.topics": False})

    def _tls(self, listener: str) -> dict[str, str]:
        prefix = f"listener.name.{listener}.ssl"
        return {
            f"{prefix}.keystore.type": "PEM",
            f"{prefix}.keystore.location": str(self.identity.both),
            f"{prefix}.truststore.type": "PEM",
            f"{prefix}.truststore.location": str(self.authority.ca),
        }

    # Who comes in, as STATEHOLD_ variables

    def scram(self, user: str, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
        """Return the settings of a user with a password of its own; create the user when it is new."""
        if user not in self._passwords:
            self.set_password(user, secrets.token_urlsafe(12))
        return self.login(user, self._passwords[user], mechanism)

    def set_password(self, user: str, password: str) -> None:
        """Change the password; open connections stay."""
        # One request each: the brokers take one change of a user at a time.
        for mechanism in (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256):
            change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            self.admin.alter_user_scram_credentials([change])[user].result(30)
        self._passwords[user] = password

    def plain(self, user: str = PLAIN_USERS[0]) -> dict[str, str]:
        return self.login(user, PLAIN_PASSWORD, "PLAIN")

    def login(self, user: str, password: str, mechanism: str) -> dict[str, str]:
        return self.tls(self.secure) | {
            f"{_PREFIX}SECURITY__PROTOCOL": "sasl_ssl",
            f"{_PREFIX}SECURITY__SASL_MECHANISM": mechanism,
            f"{_PREFIX}SECURITY__SASL_USERNAME": user,
            f"{_PREFIX}SECURITY__SASL_PASSWORD": password,
        }

    def certificate(self, user: str, subject: str = "", *, seconds: float = 2 * DAY) -> dict[str, str]:
        """Return the settings for a certificate, created once: of `subject`, or by default of User:`user`."""
        if user not in self._certificates:
            subject = subject or f"CN={user},OU=statehold,O=tests"
            self._certificates[user] = self.authority.issue(user, subject, seconds=seconds)
        found = self._certificates[user]
        return self.tls(self.mutual) | {
            f"{_PREFIX}SECURITY__SSL_CERTIFICATE_LOCATION": str(found.certificate),
            f"{_PREFIX}SECURITY__SSL_KEY_LOCATION": str(found.key),
        }

    def tls(self, servers: str) -> dict[str, str]:
        """Encrypted, without a login."""
        return {
            f"{_PREFIX}BOOTSTRAP_SERVERS": servers,
            f"{_PREFIX}SECURITY__PROTOCOL": "ssl",
            f"{_PREFIX}SECURITY__SSL_CA_LOCATION": str(self.authority.ca),
        }

    # What they may do

    def allow(self, user: str, operation: str, kind: str, name: str, *, prefixed: bool = False) -> Right:
        right = Right(user, operation, kind, name, prefixed)
        self.grant(right)
        return right

    def grant(self, *rights: Right) -> None:
        for future in self.admin.create_acls([right.binding for right in rights]).values():
            future.result(30)
        for right in rights:
            await_true(partial(self._rules, right), f"the broker knows of {right}")

    def revoke(self, *rights: Right) -> None:
        for future in self.admin.delete_acls([_filter(right.binding) for right in rights]).values():
            assert future.result(30), "there was no such rule"
        for right in rights:
            await_true(partial(self._unruled, right), f"the broker has forgotten {right}")

    def _rules(self, right: Right) -> Any:
        """Return the rules that the broker's authorizer has now; a change takes effect with a delay."""
        return self.admin.describe_acls(_filter(right.binding)).result(30)

    def _unruled(self, right: Right) -> bool:
        return not self._rules(right)

    @contextmanager
    def without(self, right: Right) -> Iterator[None]:
        """Take that right away during the block."""
        self.revoke(right)
        try:
            yield
        finally:
            self.grant(right)


@contextmanager
def secured(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Secured]:
    broker = Secured(directory, settings)
    with started(lambda: broker.cluster):
        yield broker


def _sasl() -> dict[str, str]:
    text = PLAIN_PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    users = " ".join(f'user_{user}="{text}"' for user in PLAIN_USERS)
    jaas = {
        "plain": f"{_MODULES}.plain.PlainLoginModule required {users};",
        "scram-sha-512": f"{_MODULES}.scram.ScramLoginModule required;",
        "scram-sha-256": f"{_MODULES}.scram.ScramLoginModule required;",
        # Without handlers of its own: tokens need no signature. For tests alone.
        "oauthbearer": (
            f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    settings = {f"listener.name.secure.{name}.sasl.jaas.config": _escaped(text) for name, text in jaas.items()}
    return settings | {"listener.name.secure.sasl.enabled.mechanisms": ",".join(name.upper() for name in jaas)}


def _escaped(text: str) -> str:
    """Escape backslashes as a properties file requires."""
    return text.replace("\\", "\\\\")


def _filter(binding: AclBinding) -> AclBindingFilter:
    parts: tuple[Any, ...] = (
        binding.restype,
        binding.name,
        binding.resource_pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission_type,
    )
    return AclBindingFilter(*parts)
