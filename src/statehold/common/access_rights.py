"""Which rights each role needs, from what its code really asks of the brokers, and the lines that grant them (pure).

The list was read off a broker's authorizer while every role did its work; `tests/security/test_rights.py` takes each
right away and sees that it is missed, by name. What Kafka implies is left out: READ, WRITE and DELETE bring DESCRIBE.
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
    """One operation on one thing; `operation` in capitals as Kafka's enumeration has it."""

    operation: str
    kind: str
    name: str
    #: what it is for, or what is lost without it
    why: str
    prefixed: bool = False
    #: without it the role works on, and says what it lacks
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.operation} on {self.kind} {self.name}{'*' if self.prefixed else ''}"

    def grant(self, principal: str, servers: str) -> str:
        """The command line of Kafka's own tool."""
        return f"kafka-acls.sh --bootstrap-server {servers} --command-config admin.properties {self.rule(principal)}"

    def rule(self, principal: str) -> str:
        word = "".join(part.title() for part in self.operation.split("_"))
        what = f"--{self.kind}" if self.kind == CLUSTER else f"--{self.kind} {shlex.quote(self.name)}"
        prefixed = " --resource-pattern-type prefixed" if self.prefixed else ""
        return f"--add --allow-principal {shlex.quote(principal)} --operation {word} {what}{prefixed}"


Rights = list[Right]


def service(names: Names, outputs: Sequence[str], references: Sequence[str] = ()) -> Rights:
    """`statehold run`, and a service inside another program."""
    return [
        Right("READ", TOPIC, names.input, "the records, and their offsets in the transaction"),
        Right("DESCRIBE_CONFIGS", TOPIC, names.input, "how long retention leaves", optional=True),
        *(Right("WRITE", TOPIC, topic, "what the handler sends") for topic in dict.fromkeys(outputs)),
        *(Right("READ", TOPIC, topic, "reference data") for topic in references),
        *(Right("READ", TOPIC, topic, "what is tried later") for topic in filter(names.is_for_retries, outputs)),
        *(
            Right("READ", TOPIC, topic, "to see what the end of a transaction has left open there", optional=True)
            for topic in dict.fromkeys(outputs)
            if not names.is_for_retries(topic)
        ),
        *_state(names),
        Right("READ", TOPIC, names.control, "commands by the control topic, where there is one", optional=True),
        Right("READ", GROUP, names.group, "membership, and the group's offset in the transaction"),
        ids(names),
    ]


def reader(names: Names, outputs: Sequence[str]) -> Rights:
    """Whoever only looks: snapshot list, show, verify and diff, cat, prove, lag, top, txn list, topics check."""
    return [
        Right("READ", TOPIC, names.input, "cat and prove show records"),
        *(Right("READ", TOPIC, topic, "cat shows what was sent") for topic in dict.fromkeys(outputs)),
        *(
            right
            for topic in (names.changelog, names.snapshot)
            for right in (
                Right("READ", TOPIC, topic, "marks, deltas and fulls"),
                Right("DESCRIBE_CONFIGS", TOPIC, topic, "topics check compares its settings"),
            )
        ),
        *(
            Right("DESCRIBE_CONFIGS", TOPIC, topic, "topics check compares its settings")
            for topic in filter(names.is_for_letters, outputs)
        ),
        Right("DESCRIBE", TOPIC, names.control, "topics check looks whether it is there"),
        Right("DESCRIBE", GROUP, names.group, "members and offsets"),
    ]


def commander(names: Names, outputs: Sequence[str]) -> Rights:
    """`statehold command`, `snapshot take`, `dlq`: sends commands, and waits for the marks that acknowledge them."""
    return [
        Right("WRITE", TOPIC, names.input, "a command is a record of the input"),
        Right("WRITE", TOPIC, names.control, "or of the control topic (--via-control-topic)"),
        Right("READ", TOPIC, names.changelog, "the marks that acknowledge it"),
        Right("READ", TOPIC, names.snapshot, "the full that was asked for"),
        *(Right("READ", TOPIC, names.dead, "dlq reads the letters") for topic in outputs if topic == names.dead),
    ]


def producer(names: Names, _: Sequence[str]) -> Rights:
    """Whoever writes the input; no part of statehold."""
    return [Right("WRITE", TOPIC, names.input, "records, with or without idempotence")]


def compactor(names: Names, _: Sequence[str]) -> Rights:
    """`statehold compact`, on Spark."""
    return [
        Right("DESCRIBE", TOPIC, names.input, "its partitions and its id"),
        Right("READ", TOPIC, names.changelog, "marks and deltas"),
        Right("DELETE", TOPIC, names.changelog, "truncation behind the oldest kept full"),
        Right("READ", TOPIC, names.snapshot, "the base, and what was written is read back"),
        Right("WRITE", TOPIC, names.snapshot, "the new full"),
        Right("DELETE", TOPIC, names.snapshot, "truncation behind the oldest kept full"),
        Right("READ", GROUP, f"{names.group}.compaction", "the lock: one compaction at a time"),
    ]


def operator(names: Names, outputs: Sequence[str]) -> Rights:
    """`topics create`, repairs and surgery (state ..., repair ...) of a stopped service, and all that a reader does."""
    growing = (names.input, names.changelog, names.snapshot, *filter(names.is_for_letters, outputs))
    every = dict.fromkeys((names.input, *outputs, names.changelog, names.snapshot, names.control))
    return [
        *(right for right in reader(names, outputs) if (right.operation, right.kind) != ("DESCRIBE", GROUP)),
        *(Right("CREATE", TOPIC, topic, "topics create, snapshot restore") for topic in every),
        *(Right("ALTER", TOPIC, topic, "state repartition") for topic in growing),
        Right("WRITE", TOPIC, names.changelog, "genesis, adopt and repair records"),
        Right("WRITE", TOPIC, names.snapshot, "the full of a changed state"),
        Right("READ", GROUP, names.group, "the group's offset, and being its only member meanwhile"),
        ids(names),
    ]


def ids(names: Names) -> Right:
    """Whoever has it can fence the service: nobody but the service and its operators."""
    return Right("WRITE", IDS, names.transactional_id(0)[:-1], "fence, commit", prefixed=True)


def _state(names: Names) -> Rights:
    uses = {"READ": "restore", "WRITE": "marks, deltas, fulls", "DELETE": "truncation behind the oldest kept full"}
    return [
        Right(operation, TOPIC, topic, why)
        for topic in (names.changelog, names.snapshot)
        for operation, why in uses.items()
    ]


ROLES: Final[dict[str, Callable[[Names, Sequence[str]], Rights]]] = {
    "service": service,
    "producer": producer,
    "commander": commander,
    "reader": reader,
    "operator": operator,
    "compactor": compactor,
}


def rights_of(role: str, names: Names, outputs: Sequence[str]) -> Rights:
    """:raises UsageError: there is no such role."""
    if role not in ROLES:
        raise UsageError(f"there is no role {role!r}; there are {', '.join(ROLES)}")
    return ROLES[role](names, outputs)


def principal_of(settings: Settings) -> str:
    """Who the brokers take these settings for; '' where their own rules decide (certificates, tokens)."""
    security = settings.kafka.security
    if security.sasl_username:
        return f"User:{security.sasl_username}"
    return "User:ANONYMOUS" if security.protocol == "plaintext" else ""
