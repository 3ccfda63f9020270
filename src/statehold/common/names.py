"""Builds the names of topics, groups and transactional ids. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from statehold.errors import UsageError

#: most inputs of a service: a commit record keeps the index of one in a byte
MOST_INPUTS: Final = 100
#: the end of the name of a topic of records by another key
REKEY: Final = ".rekey"

_LEGAL = re.compile(r"[A-Za-z0-9._-]*\Z")


@dataclass(frozen=True)
class Names:
    """The cluster-wide names of one service on one input topic, or on several.

    The first input, `input`, gives statehold's topics and the transactional ids their names, and the group subscribes
    to it; `others` are the further ones, in the order of their declaration. `namespace` prefixes the group, the
    transactional ids and statehold's topics, but not the inputs, because two environments on one cluster must not fence
    each other.
    """

    service: str
    input: str
    namespace: str = ""
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        inputs = [("input", name) for name in self.inputs]
        for what, name in (("service", self.service), *inputs, ("namespace", self.namespace)):
            if not _LEGAL.match(name) or (what != "namespace" and not name):
                raise UsageError(f"{what} name {name!r}: use letters, digits, '.', '_' and '-'")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """All input topics, the first one first."""
        return (self.input, *self.others)

    def full(self, topic: str) -> str:
        """Return the name of a topic as `api.output.rekey_suffix` gives its end; any other name as it is."""
        return f"{self.group}{topic}" if topic.startswith(".") and topic.endswith(REKEY) else topic

    @cached_property
    def rekeys(self) -> tuple[str, ...]:
        """The inputs that the service writes itself: the topics of each `Rekey`."""
        return tuple(topic for topic in self.others if topic.endswith(REKEY) and topic.startswith(f"{self.group}."))

    @property
    def recorded(self) -> tuple[str, ...]:
        """The inputs as commit records and manifests name them: none if there is one."""
        return self.inputs if self.others else ()

    @property
    def options(self) -> str:
        """The options that name the service on a command line, without its code."""
        return f"--name {self.service} --input {','.join(self.inputs)}"

    @cached_property
    def group(self) -> str:
        return f"{self.namespace}{self.service}"

    @cached_property
    def changelog(self) -> str:
        return f"{self.group}.{self.input}.changelog"

    @cached_property
    def snapshot(self) -> str:
        return f"{self.group}.{self.input}.snapshot"

    @cached_property
    def control(self) -> str:
        """The topic of commands, for an input whose other readers cannot handle commands in it."""
        return f"{self.group}.{self.input}.control"

    @cached_property
    def dead(self) -> str:
        """The topic of dead letters: failed records, and how each was resolved."""
        return f"{self.group}.{self.input}.dead"

    def retry(self, delay: float) -> str:
        """The topic of records to be retried after `delay` seconds."""
        return f"{self.retries}{delay:.12g}"

    @cached_property
    def retries(self) -> str:
        """The beginning of the name of each retry topic."""
        return f"{self.group}.{self.input}.retry."

    @cached_property
    def replies(self) -> str:
        """The topic of replies to requests: those of an input partition are in the same partition of it."""
        return f"{self.group}.{self.input}.replies"

    def dead_letter_name(self, topic: str, partition: int, offset: int) -> str:
        """What commands call the dead letter of a record, such as 3@1207; with several inputs trades:3@1207."""
        return f"{partition}@{offset}" if not self.others else f"{topic}:{partition}@{offset}"

    def is_for_retries(self, topic: str) -> bool:
        """Return whether this is a retry topic of the service."""
        return topic.startswith(self.retries)

    def is_for_dead_letters(self, topic: str) -> bool:
        """Return whether this is the dead-letter topic or a retry topic of the service."""
        return topic == self.dead or self.is_for_retries(topic)

    def follows_input(self, topic: str) -> bool:
        """Return whether a topic's partitions are the input's: dead letters, retries or replies of the service."""
        return topic == self.replies or self.is_for_dead_letters(topic)

    def transactional_id(self, partition: int) -> str:
        """Static per partition, so that a new owner fences the old one (requirement B2)."""
        return f"{self.group}.{self.input}.{partition}"
