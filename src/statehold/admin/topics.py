"""Our topics: what they must be like, creating them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from statehold.admin.initial_commit import Genesis
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import AccessRefused, KafkaTrouble, Misconfigured, StartError, TopicMismatch, TopicMissing
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.common.retry import patiently
from statehold.telemetry.log_events import Log

#: What an increment or full topic must be set to, and why.
REQUIRED: dict[str, str] = {
    "cleanup.policy": "delete",  # records have no keys: compaction would destroy them
    "retention.ms": "-1",  # statehold itself truncates, behind the oldest kept full
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",  # a worker with a slow clock must not age its own snapshots out
}

#: what waits on a topic for dead letters, tries or commands is never deleted by time nor merged by key
KEPT: dict[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

#: so often in a row, with pauses of so many seconds, a new topic must be known before it is relied on
_SEEN, _SEEN_PAUSE = 8, 0.05
#: seconds for which the topics are asked for again; a single question takes up to ten
START_PATIENCE = 25.0


@contextlib.contextmanager
def reaching(settings: Settings) -> Iterator[None]:
    """Around the first question to the cluster: what is wrong there is a wrong set-up, told with what to check.

    :raises StartError: the brokers do not answer, or refuse us.
    """
    servers = settings.kafka.bootstrap_servers
    try:
        yield
    except Misconfigured as error:
        raise AccessRefused(
            f"the brokers at {servers} refuse us ({error}): check kafka.security and our rights"
        ) from error
    except KafkaTrouble as error:
        raise StartError(
            f"the brokers at {servers} do not answer ({error}): check kafka.bootstrap_servers, and "
            f"`statehold dev status` for brokers of this machine"
        ) from error


class Finding(NamedTuple):
    """One topic as `create` or `check` found it."""

    topic: str
    #: created, ok, missing, or what differs and the command that mends it
    state: str

    @property
    def good(self) -> bool:
        return self.state in ("created", "ok") or self.state.startswith("ok,")


def require(
    admin: Admin,
    names: Names,
    outputs: Collection[str],
    cancelled: Callable[[], bool] = lambda: False,
    patience: float = 6.0,
) -> dict[str, TopicFacts]:
    """The facts of every topic a service needs; without an answer it is asked again for `patience` seconds.

    :raises TopicMissing, TopicMismatch: naming the topics and the command.
    :raises KafkaTrouble: the cluster does not answer. :raises Cancelled: `cancelled` became true meanwhile.
    """
    wanted = [names.input, names.changelog, names.snapshot, *outputs]
    asked = list(dict.fromkeys(wanted))
    # One broker that is cut off must not fail a start: another one is asked next time.
    found = patiently(lambda: admin.describe(asked, cancelled), patience, cancelled=cancelled)
    missing = [topic for topic in wanted if found[topic] is None]
    if missing:
        _require_certainty(admin, missing)
        named = f"--name {names.service} --input {names.input}"
        named += "".join(f" --output {topic}" for topic in outputs if topic in missing)
        raise TopicMissing(
            f"missing on the cluster: {', '.join(missing)}. statehold creates no topic by accident; "
            f"`statehold topics create {named} --start-at ...` creates ours, and with --partitions N the input and "
            f"outputs as well"
        )
    facts = {topic: fact for topic, fact in found.items() if fact is not None}
    for topic in (names.changelog, names.snapshot):
        if facts[topic].partitions != facts[names.input].partitions:
            raise TopicMismatch(
                f"{topic} has {facts[topic].partitions} partitions, {names.input} has {facts[names.input].partitions}: "
                f"partition p of one belongs to p of the other. Was the input grown? Keys have moved then: stop the "
                f"producers, and `statehold state repartition --to {facts[names.input].partitions}` (docs/surgery.md)"
            )
    for topic in filter(names.is_for_letters, outputs):
        if facts[topic].partitions < facts[names.input].partitions:
            raise TopicMismatch(
                f"{topic} has {facts[topic].partitions} partitions, {names.input} has {facts[names.input].partitions}: "
                f"a dead letter goes to its record's partition; kafka-topics --alter --topic {topic} --partitions "
                f"{facts[names.input].partitions}"
            )
    return facts


def require_references(admin: Admin, topics: Sequence[str], log: Log) -> None:
    """Reference topics are others': they must be there, and keep the newest value of each key for ever.

    :raises TopicMissing, TopicMismatch: naming the topic. :raises KafkaTrouble: the cluster does not answer.
    """
    if not topics:
        return
    for topic, fact in admin.describe(list(topics)).items():
        if fact is None:
            raise TopicMissing(f"the reference topic {topic} is missing: its owner creates it, compacted")
        try:
            policy = TopicAdmin(admin).settings(topic).get("cleanup.policy", "")
        except KafkaTrouble as error:  # only the right to look may be missing
            log.warning("kafka_retry", doing=f"look at the settings of {topic}", cause=str(error))
            continue
        if policy != "compact":
            raise TopicMismatch(
                f"the reference topic {topic} has cleanup.policy={policy}: what is deleted from it by age would be "
                f"missing in one process and not in another. kafka-configs --alter --add-config cleanup.policy=compact"
            )


def _require_certainty(admin: Admin, missing: Sequence[str]) -> None:
    """One broker's word is not enough: it may be behind.

    :raises KafkaTrouble: no other broker confirms it.
    """
    for topic in missing:
        try:
            admin.require_there(topic)
        except TopicMissing:
            return
    raise KafkaTrouble(f"a broker does not know {', '.join(missing)}, and no second one confirms that")


class Topics:
    """`statehold topics create|check` for one service.

    Blocks; raises StartError when the cluster does not answer, KafkaTrouble when it fails on the way.
    """

    def __init__(self, settings: Settings, names: Names, outputs: Sequence[str] = ()) -> None:
        self._settings, self._names, self._outputs = settings, names, list(dict.fromkeys(outputs))
        self._admin = Admin(settings, names.group)
        self._topics = TopicAdmin(self._admin)
        self._log = Log(service=names.group)

    def check(self) -> list[Finding]:
        """Compare every topic with what it must be; changes nothing."""
        names = self._names
        with reaching(self._settings):
            facts = self._admin.describe([names.input, names.changelog, names.snapshot, names.control, *self._outputs])
        given, letters = facts[names.input], list(filter(names.is_for_letters, self._outputs))
        plain = [names.input, *(topic for topic in self._outputs if topic not in letters)]
        findings = [Finding(topic, "ok" if facts[topic] else "missing") for topic in plain]
        for topic in (*letters, *([names.control] if letters else [])):  # they are settled by way of the control topic
            fact = facts[topic]
            findings.append(Finding(topic, self._loses(fact, given) if fact else "missing"))
        for topic in (names.changelog, names.snapshot):
            fact = facts[topic]
            findings.append(Finding(topic, self._differs(fact, given) if fact else "missing"))
        return findings

    def create(
        self, start_at: str, partitions: int = 0, replication: int = 0, *, control: bool = False
    ) -> list[Finding]:
        """Create what is missing, compare what is there, and write the genesis marks of partitions that have none.

        With `control` the control topic, too (docs/cli.md, "statehold command").
        `start_at` is beginning, end, group, an ISO 8601 time or milliseconds since 1970. With `partitions` a missing
        input and missing outputs are created too.

        :raises TopicMissing: the input is missing and `partitions` is 0.
        :raises StartError: a position cannot be told; nothing was written for any partition then.
        """
        wanted = dict.fromkeys((self._names.input, *self._outputs), partitions)
        created, count = self._make_all(wanted, replication, control)
        retries = list(filter(self._names.is_for_retries, self._outputs))
        Genesis(self._settings, self._names, self._admin, self._topics, self._log, retries).begin(count, start_at)
        return [Finding(f.topic, "created" if f.topic in created and f.good else f.state) for f in self.check()]

    def make(self, replication: int, partitions: Mapping[str, int], *, control: bool = False) -> None:
        """Create what is missing and write no mark: for a tool that writes another beginning.

        `partitions` names those of the input and the outputs.
        """
        self._make_all(partitions, replication, control=control)

    def _make_all(self, partitions: Mapping[str, int], replication: int, control: bool) -> tuple[set[str], int]:
        """The topics that were created, and the partition count of the input."""
        names = self._names
        with reaching(self._settings):
            self._admin.describe([names.input])
        plain = {topic: count for topic, count in partitions.items() if not names.is_for_letters(topic)}
        created = {topic for topic, count in plain.items() if self._make(topic, count, replication)}
        self._await(created)
        given = self._admin.describe([names.input])[names.input]
        if given is None:
            raise TopicMissing(f"the input {names.input} is missing; --partitions N creates it")
        ours = {
            **REQUIRED,
            "max.message.bytes": str(self._settings.kafka.message_max_bytes + 1024),
            "min.insync.replicas": "2" if given.replication >= 3 else "1",
        }
        for topic in (names.changelog, names.snapshot):
            if self._topics.create(topic, given.partitions, given.replication, ours):
                created.add(topic)
        letters = {**KEPT, "max.message.bytes": ours["max.message.bytes"]}
        for topic in partitions:
            if topic not in plain and self._topics.create(topic, given.partitions, given.replication, letters):
                created.add(topic)
        # Letters are replayed and discarded by commands of the control topic.
        control = control or len(plain) < len(partitions)
        if control and self._topics.create(names.control, given.partitions, given.replication, KEPT):
            created.add(names.control)
        self._await(created)
        return created, given.partitions

    def _make(self, topic: str, partitions: int, replication: int) -> bool:
        if partitions <= 0:
            return False
        settings = {"min.insync.replicas": "2" if replication >= 3 else "1"} if replication else {}
        return self._topics.create(topic, partitions, replication or -1, settings)

    def _await(self, created: set[str]) -> None:
        """A created topic takes a moment to be known to every broker, and each question goes to another one."""
        deadline = time.monotonic() + 30
        seen = 0
        while created and seen < _SEEN:
            if time.monotonic() > deadline:
                raise StartError(f"created, but not known to the brokers after 30 s: {', '.join(sorted(created))}")
            known = None not in self._admin.describe(sorted(created)).values()
            seen = seen + 1 if known else 0
            time.sleep(0 if seen >= _SEEN else _SEEN_PAUSE)

    def _loses(self, fact: TopicFacts, given: TopicFacts | None) -> str:
        """Letters, tries and commands wait for as long as it takes."""
        if given is not None and fact.partitions < given.partitions:
            return f"has {fact.partitions} partitions, the input has {given.partitions}"
        return self._mend(fact, KEPT) or "ok"

    def _mend(self, fact: TopicFacts, wanted: Mapping[str, str]) -> str:
        """The command that mends what is set otherwise; '' where nothing is."""
        now = self._topics.settings(fact.name)
        wrong = {key: value for key, value in wanted.items() if now.get(key) != value}
        if not wrong:
            return ""
        described = ", ".join(f"{key}={now.get(key)}" for key in wrong)
        setting = ",".join(f"{key}={value}" for key, value in wrong.items())
        return (
            f"differs: {described}; mend: kafka-configs --alter --entity-type topics --entity-name {fact.name} "
            f"--add-config {setting}"
        )

    def _differs(self, fact: TopicFacts, given: TopicFacts | None) -> str:
        if given is not None and fact.partitions != given.partitions:
            return f"has {fact.partitions} partitions, the input has {given.partitions}"
        wanted = dict(REQUIRED)
        if int(self._topics.settings(fact.name).get("max.message.bytes", "0")) < self._settings.kafka.message_max_bytes:
            wanted["max.message.bytes"] = str(self._settings.kafka.message_max_bytes + 1024)
        return self._mend(fact, wanted) or (
            "ok" if fact.replication >= 3 else f"ok, but only {fact.replication} replica(s)"
        )
