"""Lists the rights that each role needs, and the commands that grant them. Pure.

The list is what a broker's authorizer logged while every role worked. `tests/security/test_rights.py` removes each
right and requires an error that names it. READ, WRITE and DELETE imply DESCRIBE, which is not listed then.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import UsageError

TOPIC, GROUP, IDS, CLUSTER = "topic", "group", "transactional-id", "cluster"


class Right(NamedTuple):
    """One operation on one resource; `operation` in capitals, as in Kafka's enumeration."""

    operation: str
    kind: str
    name: str
    #: its purpose, or what fails without it
    why: str
    prefixed: bool = False
    #: without it the role works, and logs what it lacks
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'*' if self.prefixed else ''}"

    def grant(self, principal: str, servers: str) -> str:
        """Return the command line of Kafka's own tool."""
        return f"kafka-acls.sh --bootstrap-server {servers} --command-config admin.properties {self.rule(principal)}"

    def rule(self, principal: str) -> str:
        word = "".join(part.title() for part in self.operation.split("_"))
        what = f"--{self.kind}" if self.kind == CLUSTER else f"--{self.kind} {shlex.quote(self.name)}"
        prefixed = " --resource-pattern-type prefixed" if self.prefixed else ""
        return f"--add --allow-principal {shlex.quote(principal)} --operation {word} {what}{prefixed}"


Rights = list[Right]


def service(names: Names, outputs: Sequence[str], references: Sequence[str] = ()) -> Rights:
    """Return the rights of `statehold run`, and of a service inside another program."""
    return [
        *(Right("READ", TOPIC, topic, "the records, and their offsets in the transaction") for topic in names.inputs),
        *(
            Right("DESCRIBE_CONFIGS", TOPIC, topic, "time until retention deletes unread records", optional=True)
            for topic in names.inputs
        ),
        *(Right("WRITE", TOPIC, topic, "the handler's outputs") for topic in dict.fromkeys(outputs)),
        *(Right("WRITE", TOPIC, topic, "the handler's sends by another key") for topic in names.rekeys),
        *(
            Right("DELETE", TOPIC, topic, "truncation behind the oldest kept full snapshot", optional=True)
            for topic in names.rekeys
        ),
        *(Right("READ", TOPIC, topic, "reference data") for topic in references),
        *(
            Right("READ", TOPIC, topic, "records to be retried later")
            for topic in filter(names.is_for_retries, outputs)
        ),
        *(
            Right("READ", TOPIC, topic, "to find partitions that the end of a transaction left open", optional=True)
            for topic in dict.fromkeys(outputs)
            if not names.is_for_retries(topic)
        ),
        *_state(names),
        Right("READ", TOPIC, names.control, "commands of the control topic, if it exists", optional=True),
        Right("READ", GROUP, names.group, "membership, and the group's offset in the transaction"),
        ids(names),
    ]


def reader(names: Names, outputs: Sequence[str], references: Sequence[str] = ()) -> Rights:
    """Return the rights to read: snapshot list, show, verify and diff, cat, prove, lag, top, txn list, topics check."""
    return [
        *(Right("READ", TOPIC, topic, "cat and prove show records") for topic in names.inputs),
        *(Right("READ", TOPIC, topic, "cat shows the outputs") for topic in dict.fromkeys(outputs)),
        *(
            right
            for topic in (names.changelog, names.snapshot)
            for right in (
                Right("READ", TOPIC, topic, "commit records, deltas and full snapshots"),
                Right("DESCRIBE_CONFIGS", TOPIC, topic, "topics check compares its settings"),
            )
        ),
        *(
            Right("DESCRIBE_CONFIGS", TOPIC, topic, "topics check compares its settings")
            for topic in (*filter(names.follows_input, outputs), *names.rekeys)
        ),
        *(
            Right(operation, TOPIC, topic, "topics check compares the settings of reference data")
            for topic in references
            for operation in ("DESCRIBE", "DESCRIBE_CONFIGS")
        ),
        Right("DESCRIBE", TOPIC, names.control, "topics check asks whether it exists"),
        Right("DESCRIBE_CONFIGS", TOPIC, names.control, "topics check compares its settings, if it exists"),
        Right("DESCRIBE", GROUP, names.group, "members and offsets"),
    ]


def commander(names: Names, outputs: Sequence[str], _references: Sequence[str] = ()) -> Rights:
    """Return the rights of `command`, `snapshot take` and `dlq`, which send commands and await their commit records."""
    return [
        Right("WRITE", TOPIC, names.input, "a command is a record of the input"),
        Right("WRITE", TOPIC, names.control, "or of the control topic (--via-control-topic)"),
        Right("READ", TOPIC, names.changelog, "the commit records that acknowledge it"),
        Right("READ", TOPIC, names.snapshot, "the requested full snapshot"),
        *(Right("READ", TOPIC, names.dead, "dlq reads the dead letters") for topic in outputs if topic == names.dead),
    ]


def producer(names: Names, _outputs: Sequence[str], _references: Sequence[str] = ()) -> Rights:
    """Return the rights of the programs that write the input; none of them is part of statehold."""
    own = [topic for topic in names.inputs if topic not in names.rekeys]
    return [Right("WRITE", TOPIC, topic, "records, with or without idempotence") for topic in own]


def asker(names: Names, outputs: Sequence[str], _references: Sequence[str] = ()) -> Rights:
    """Return the rights of a program that asks the service with a `Client`."""
    return [
        Right("WRITE", TOPIC, names.input, "a request is a record of the input"),
        *(Right("READ", TOPIC, topic, "the replies") for topic in outputs if topic == names.replies),
        Right("DESCRIBE", GROUP, names.group, "to find the owner of a partition", optional=True),
    ]


def watcher(names: Names, _outputs: Sequence[str], _references: Sequence[str] = ()) -> Rights:
    """Return the rights of a program that watches tables with a `Client`."""
    return [
        Right("DESCRIBE", TOPIC, names.input, "its partitions"),
        Right("READ", TOPIC, names.changelog, "committed changes, of all tables"),
    ]


def compactor(names: Names, _outputs: Sequence[str], _references: Sequence[str] = ()) -> Rights:
    """Return the rights of `statehold compact`, on Spark."""
    return [
        *(Right("DESCRIBE", TOPIC, topic, "its partitions and its id") for topic in names.inputs),
        Right("READ", TOPIC, names.changelog, "commit records and deltas"),
        Right("DELETE", TOPIC, names.changelog, "truncation behind the oldest kept full snapshot"),
        Right("READ", TOPIC, names.snapshot, "the base, and reading back the new full snapshot"),
        Right("WRITE", TOPIC, names.snapshot, "the new full snapshot"),
        Right("DELETE", TOPIC, names.snapshot, "truncation behind the oldest kept full snapshot"),
        Right("READ", GROUP, f"{names.group}.compaction", "the lock: one compaction at a time"),
    ]


def operator(names: Names, outputs: Sequence[str], references: Sequence[str] = ()) -> Rights:
    """Return the rights of `topics create`, of `state` and `repair` on a stopped service, and of a reader."""
    growing = (*names.inputs, names.changelog, names.snapshot, *filter(names.follows_input, outputs))
    every = dict.fromkeys((*names.inputs, *outputs, names.changelog, names.snapshot, names.control))
    return [
        *(
            right
            for right in reader(names, outputs, references)
            if (right.operation, right.kind) != ("DESCRIBE", GROUP)
        ),
        *(Right("CREATE", TOPIC, topic, "topics create, snapshot restore") for topic in every),
        *(Right("ALTER", TOPIC, topic, "state repartition") for topic in growing),
        Right("WRITE", TOPIC, names.changelog, "initial commit records and state-replacement records"),
        Right("WRITE", TOPIC, names.snapshot, "the full snapshot of a changed state"),
        Right("READ", GROUP, names.group, "the group's offset, and being its only member during the change"),
        ids(names),
    ]


def ids(names: Names) -> Right:
    """Return the right to fence the service; only the service and its operators should have it."""
    return Right("WRITE", IDS, names.transactional_id(0)[:-1], "fence, commit", prefixed=True)


def _state(names: Names) -> Rights:
    uses = {
        "READ": "restore",
        "WRITE": "commit records, deltas, full snapshots",
        "DELETE": "truncation behind the oldest kept full snapshot",
    }
    return [
        Right(operation, TOPIC, topic, why)
        for topic in (names.changelog, names.snapshot)
        for operation, why in uses.items()
    ]


ROLES: Final[dict[str, Callable[[Names, Sequence[str], Sequence[str]], Rights]]] = {
    "service": service,
    "producer": producer,
    "asker": asker,
    "watcher": watcher,
    "commander": commander,
    "reader": reader,
    "operator": operator,
    "compactor": compactor,
}


def rights_of(role: str, names: Names, outputs: Sequence[str], references: Sequence[str] = ()) -> Rights:
    """:raises UsageError: the role does not exist."""
    if role not in ROLES:
        raise UsageError(f"the role {role!r} does not exist; use one of {', '.join(ROLES)}")
    return ROLES[role](names, outputs, references)


def principal_of(settings: Settings) -> str:
    """Return the principal of these settings; '' if the brokers derive it (certificates, tokens)."""
    security = settings.kafka.security
    if security.sasl_username:
        return f"User:{security.sasl_username}"
    return "User:ANONYMOUS" if security.protocol == "plaintext" else ""
