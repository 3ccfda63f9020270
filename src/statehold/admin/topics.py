"""Requirements on a service's topics; checks and creates them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from statehold.admin.initial_commit import InitialCommits, require_start
from statehold.common.names import Names
from statehold.config.settings import Settings
from statehold.errors import AccessRefused, KafkaTrouble, Misconfigured, StartError, TopicMismatch, TopicMissing
from statehold.kafka.admin.admin import Admin, TopicFacts
from statehold.kafka.admin.topics import TopicAdmin
from statehold.kafka.common.error_advice import advice_to_connect
from statehold.kafka.common.retry import call_patiently
from statehold.telemetry.log_events import Log

#: Required settings of the changelog and snapshot topics, with the reasons.
REQUIRED: dict[str, str] = {
    "cleanup.policy": "delete",  # records have no keys: compaction would destroy them
    "retention.ms": "-1",  # statehold truncates the topics itself, behind the oldest full snapshot that is kept
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",  # a worker with a slow clock must not age its own snapshots out
}

#: Required settings of the topics for dead letters, retries and commands: Kafka must not delete or compact them.
KEPT: dict[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}

#: Required and further settings of the topic of replies: no asker waits for an old one, and the state has the answers.
REPLIES: dict[str, str] = {"cleanup.policy": "delete"}
REPLIES_EXPIRE: dict[str, str] = {"retention.ms": "3600000", "segment.ms": "600000"}

#: Required settings of the topic of a `Rekey`: nothing is deleted before its partition has handled it, and a record has
#: the time of the record that sent it, which may be any.
REKEYED: dict[str, str] = {
    **KEPT,
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}

#: Settings of a reference topic that `topics create` creates in development. Only the first one is required.
COMPACTED: dict[str, str] = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}

#: Consecutive answers that must name a new topic before it is used, and seconds between two of them.
_SEEN, _SEEN_PAUSE = 8, 0.05
#: Seconds for which `create` asks for a topic that no broker lists yet, because another tool may just have created it.
_LISTED = 2.0
#: Seconds for which a start describes the topics again; one request takes up to ten.
START_PATIENCE = 25.0


@contextlib.contextmanager
def reaching(settings: Settings) -> Iterator[None]:
    """Turn the errors of the first request to the cluster into errors that say which settings to check.

    :raises AccessRefused: the brokers reject the login or a request. :raises StartError: the brokers do not answer.
    """
    servers = settings.kafka.bootstrap_servers
    try:
        yield
    except Misconfigured as error:
        raise AccessRefused(
            f"{servers}: connect: the brokers reject the request: {error}. Next: {advice_to_connect(error)}"
        ) from error
    except KafkaTrouble as error:
        raise StartError(
            f"{servers}: connect: the brokers do not answer: {error}. Next: {advice_to_connect(error)}"
        ) from error


class TopicFinding(NamedTuple):
    """Result of `create` or `check` for one topic."""

    topic: str
    #: "created", "ok", "missing", or the difference and the command that fixes it.
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
    """Return the facts of every topic that the service needs. Retries for `patience` seconds.

    :raises TopicMissing, TopicMismatch: the text names the topics and the command that fixes them.
    :raises KafkaTrouble: the cluster does not answer. :raises Cancelled: `cancelled` returned true.
    """
    wanted = [*names.inputs, names.changelog, names.snapshot, *outputs]
    asked = list(dict.fromkeys(wanted))
    # Retry, because one unreachable broker must not fail a start; the next request goes to another broker.
    found = call_patiently(lambda: admin.describe(asked, cancelled), patience, cancelled=cancelled)
    missing = [topic for topic in wanted if found[topic] is None]
    if missing:
        _require_certainty(admin, missing)
        named = names.options
        named += "".join(f" --output {topic}" for topic in outputs if topic in missing)
        raise TopicMissing(
            f"missing on the cluster: {', '.join(missing)}. Nothing was created. Next: run `statehold topics create "
            f"{named} --start-at beginning|end|TIME`, which creates the changelog and snapshot topics; with "
            f"--partitions N it also creates the input and the outputs{_of_former_input(admin, names, missing)}"
        )
    facts = {topic: fact for topic, fact in found.items() if fact is not None}
    for topic in names.others:
        if facts[topic].partitions != facts[names.input].partitions:
            if topic in names.rekeys and facts[topic].partitions < facts[names.input].partitions:
                raise TopicMismatch(
                    f"{topic} has {facts[topic].partitions} partitions, {names.input} has "
                    f"{facts[names.input].partitions}: a key has to be in the same partition of both, so no record was "
                    f"handled. Next: if the service has a state, stop the producers and run `statehold state "
                    f"repartition MODULE:SERVICE --to {largest_count(facts, names)} --why TEXT --yes`; if it has none, "
                    f"delete {topic} and run `statehold topics create MODULE:SERVICE --start-at beginning|end|TIME`"
                )
            raise TopicMismatch(
                f"{topic} has {facts[topic].partitions} partitions, {names.input} has {facts[names.input].partitions}: "
                f"one partition of a service reads the same partition of each input. Next: give both the same number "
                f"of partitions, written by producers with the same partitioner; if the service has a state, stop the "
                f"producers and run `statehold state repartition MODULE:SERVICE --to "
                f"{largest_count(facts, names)} --why TEXT --yes`, which adds the others'"
            )
    _require_counts_of_state(facts, names)
    for topic in filter(names.follows_input, outputs):
        if facts[topic].partitions < facts[names.input].partitions:
            what = "a reply" if topic == names.replies else "a dead letter"
            raise TopicMismatch(
                f"{topic} has {facts[topic].partitions} partitions, {names.input} has {facts[names.input].partitions}; "
                f"{what} goes to its record's partition. Next: run `kafka-topics --alter --topic {topic} "
                f"--partitions {facts[names.input].partitions}`"
            )
    return facts


def _of_former_input(admin: Admin, names: Names, missing: Collection[str]) -> str:
    """Return a hint if there is a changelog of another first input, of which the group has an offset; '' otherwise."""
    begin, end = f"{names.group}.", ".changelog"
    if names.changelog not in missing:
        return ""
    try:
        there = sorted(topic for topic in TopicAdmin(admin).listed() if topic.startswith(begin) and topic.endswith(end))
        inputs = [topic.removeprefix(begin).removesuffix(end) for topic in there]
        # Another service's name may begin in the same way.
        first = next((topic for topic in inputs if admin.committed(topic, 0) is not None), "")
    except KafkaTrouble:
        return ""
    if not first:
        return ""
    return (
        f". But the cluster has {begin}{first}{end}: if the service had another first input, create no topics, because "
        f"its state would begin again; stop the service: `statehold state inputs MODULE:SERVICE --rename "
        f"{first}={names.input} --why TEXT --dry-run`"
    )


def largest_count(facts: Mapping[str, TopicFacts], names: Names) -> int:
    """Return the number of partitions that inputs, changelog and snapshot need, because Kafka can remove none."""
    return max(facts[topic].partitions for topic in (*names.inputs, names.changelog, names.snapshot))


def _require_counts_of_state(facts: Mapping[str, TopicFacts], names: Names) -> None:
    """:raises TopicMismatch: changelog or snapshot topic has other partitions than the input."""
    given, most = facts[names.input].partitions, largest_count(facts, names)
    command = f"statehold state repartition MODULE:SERVICE --to {most} --why TEXT --yes"
    for topic in (names.changelog, names.snapshot):
        if facts[topic].partitions == given:
            continue
        differ = (
            f"{topic} has {facts[topic].partitions} partitions, {names.input} has {given}; both need the same number"
        )
        if most > given:  # the command extends the inputs last
            raise TopicMismatch(
                f"{differ}: `statehold state repartition --to {most}` was interrupted before it replaced the state, "
                f"which is unchanged. Next: stop the producers and run it again: `{command}`"
            )
        raise TopicMismatch(
            f"{differ}. Next: if partitions were added to the input, keys have moved: stop the producers and run "
            f"`{command}`"
        )


def require_references(admin: Admin, topics: Sequence[str], log: Log) -> None:
    """Check that the reference topics exist and keep the newest value of each key.

    :raises TopicMissing, TopicMismatch: the text names the topic. :raises KafkaTrouble: the cluster does not answer.
    """
    if not topics:
        return
    for topic, fact in admin.describe(list(topics)).items():
        if fact is None:
            raise TopicMissing(
                f"{topic}: the reference topic does not exist. Next: ask its owner to create it with "
                f"cleanup.policy=compact; with service.mode = 'development' `statehold topics create MODULE:SERVICE "
                f"--start-at beginning --partitions N` creates it, too"
            )
        try:
            policy = TopicAdmin(admin).settings(topic).get("cleanup.policy", "")
        except KafkaTrouble as error:  # the ACL DESCRIBE_CONFIGS is optional
            log.warning("kafka_retry", doing=f"read the settings of {topic}", cause=str(error))
            continue
        if policy != "compact":
            raise TopicMismatch(
                f"{topic}: the reference topic has cleanup.policy={policy}; deletion by age makes processes see "
                f"different rows. Next: run `kafka-configs --alter --entity-type topics --entity-name {topic} "
                f"--add-config cleanup.policy=compact`"
            )


def _require_certainty(admin: Admin, missing: Sequence[str]) -> None:
    """Confirm with a second broker that the topics are missing, because the metadata of one broker may be stale.

    :raises KafkaTrouble: no other broker confirms it.
    """
    for topic in missing:
        try:
            admin.require_existing(topic)
        except TopicMissing:
            return
    raise KafkaTrouble(f"one broker does not know {', '.join(missing)}; no second broker confirms it")


class ServiceTopics:
    """`statehold topics create|check` for one service.

    Every method blocks. Raises StartError if the cluster does not answer, KafkaTrouble if it fails later.
    """

    def __init__(
        self, settings: Settings, names: Names, outputs: Sequence[str] = (), references: Sequence[str] = ()
    ) -> None:
        self._settings, self._names, self._outputs = settings, names, list(dict.fromkeys(outputs))
        self._references = list(dict.fromkeys(references))
        self._admin = Admin(settings, names.group)
        self._topics = TopicAdmin(self._admin)
        self._log = Log(service=names.group)

    def check(self) -> list[TopicFinding]:
        """Compare every topic with its requirements. Changes nothing."""
        names = self._names
        with reaching(self._settings):
            facts = self._admin.describe(
                [*names.inputs, names.changelog, names.snapshot, names.control, *self._outputs, *self._references]
            )
        given, dead_letters = facts[names.input], list(filter(names.is_for_dead_letters, self._outputs))
        replies = [names.replies] if names.replies in self._outputs else []
        other = (*dead_letters, *replies, *self._references)
        plain = [names.input, *(topic for topic in self._outputs if topic not in other)]
        findings = [TopicFinding(topic, "ok" if facts[topic] else "missing") for topic in plain]
        findings[1:1] = [TopicFinding(topic, self._matches(facts[topic], given)) for topic in names.others]
        for topic in self._references:
            fact = facts[topic]
            findings.append(TopicFinding(topic, self._expires(fact) if fact else "missing"))
        # Dead letters need the control topic, because its commands redrive and discard them; it is optional without.
        for topic in (*dead_letters, *([names.control] if dead_letters or facts[names.control] else [])):
            fact = facts[topic]
            findings.append(TopicFinding(topic, self._loses(fact, given) if fact else "missing"))
        for topic in replies:
            fact = facts[topic]
            findings.append(TopicFinding(topic, self._loses(fact, given, REPLIES) if fact else "missing"))
        for topic in (names.changelog, names.snapshot):
            fact = facts[topic]
            findings.append(TopicFinding(topic, self._differs(fact, given) if fact else "missing"))
        return findings

    def create(
        self, start_at: str, partitions: int = 0, replication: int = 0, *, control: bool = False
    ) -> list[TopicFinding]:
        """Create missing topics, check existing ones, and write missing initial commit records.

        `start_at` is beginning, end, group, an ISO 8601 time or milliseconds since 1970. With `partitions` it also
        creates a missing input and missing outputs, and in development missing reference topics, which are another
        program's in production; with `control` it creates the control topic.

        :raises TopicMissing: the input or an output does not exist and `partitions` is 0; nothing was created.
        :raises UsageError: `start_at` is not valid; nothing was created.
        :raises StartError: a start offset is unknown; no partition has an initial commit record then.
        """
        require_start(start_at)
        references = self._references if self._settings.service.mode == "development" else ()
        wanted = dict.fromkeys((*self._names.inputs, *self._outputs, *references), partitions)
        created, count = self._make_all(wanted, replication, control)
        retries = list(filter(self._names.is_for_retries, self._outputs))
        InitialCommits(self._settings, self._names, self._admin, self._topics, self._log, retries).begin(
            count, start_at
        )
        return [TopicFinding(f.topic, "created" if f.topic in created and f.good else f.state) for f in self.check()]

    def make(self, replication: int, partitions: Mapping[str, int], *, control: bool = False) -> None:
        """Create missing topics without initial commit records, for a tool that writes other first records.

        `partitions` maps the input and the outputs to their numbers of partitions.
        """
        self._make_all(partitions, replication, control=control)

    def _make_all(self, partitions: Mapping[str, int], replication: int, control: bool) -> tuple[set[str], int]:
        """Return the created topics and the input's number of partitions.

        :raises TopicMissing: a topic does not exist and has no number of partitions; nothing was created.
        """
        names = self._names
        own = set(names.rekeys)
        asked = {topic: count for topic, count in partitions.items() if topic not in own}
        plain = {topic: count for topic, count in asked.items() if not names.follows_input(topic)}
        with reaching(self._settings):
            unlisted = self._unlisted(list(plain))
        late = missing = [topic for topic in unlisted if plain[topic] <= 0]
        deadline = time.monotonic() + _LISTED
        while missing and time.monotonic() < deadline:
            time.sleep(_SEEN_PAUSE)
            missing = self._unlisted(missing)
        if missing:
            also = set(missing) & set(self._references)
            raise TopicMissing(
                f"missing on the cluster: {', '.join(missing)}. Nothing was created. Next: add --partitions N, which "
                f"creates {'input, outputs and reference topics' if also else 'input and outputs'}, too, or create "
                f"them yourself first"
            )
        created = {topic for topic, count in plain.items() if self._make(topic, count, replication)}
        self._await(created.union(late))
        given = self._admin.describe([names.input])[names.input]
        if given is None:
            raise TopicMissing(f"{names.input}: the input was deleted meanwhile. Next: run the command again")
        ours = {
            **REQUIRED,
            "max.message.bytes": str(self._settings.kafka.message_max_bytes + 1024),
            "min.insync.replicas": "2" if given.replication >= 3 else "1",
        }
        room = {"max.message.bytes": ours["max.message.bytes"]}
        kept = dict.fromkeys((names.changelog, names.snapshot), ours)
        kept |= {
            topic: {**REPLIES, **REPLIES_EXPIRE, **room} if topic == names.replies else {**KEPT, **room}
            for topic in asked
            if topic not in plain
        }
        kept |= dict.fromkeys(names.rekeys, ours | REKEYED)
        for topic, wanted in kept.items():
            if self._topics.create(topic, given.partitions, given.replication, wanted):
                created.add(topic)
        control = control or any(map(names.is_for_dead_letters, asked))
        if control and self._topics.create(names.control, given.partitions, given.replication, KEPT):
            created.add(names.control)
        self._await(created)
        return created, given.partitions

    def _unlisted(self, topics: list[str]) -> list[str]:
        facts = self._admin.describe(topics)
        return [topic for topic in topics if facts[topic] is None]

    def _make(self, topic: str, partitions: int, replication: int) -> bool:
        if partitions <= 0:
            return False
        settings = {"min.insync.replicas": "2" if replication >= 3 else "1"} if replication else {}
        if topic in self._references:
            settings |= COMPACTED
        return self._topics.create(topic, partitions, replication or -1, settings)

    def _await(self, created: set[str]) -> None:
        """Wait until several brokers know the created topics, because each request goes to another broker."""
        deadline = time.monotonic() + 30
        seen = 0
        while created and seen < _SEEN:
            if time.monotonic() > deadline:
                raise StartError(
                    f"{', '.join(sorted(created))}: created, but the brokers do not list the topics after 30 s. "
                    f"Next: run the command again"
                )
            known = None not in self._admin.describe(sorted(created)).values()
            seen = seen + 1 if known else 0
            time.sleep(0 if seen >= _SEEN else _SEEN_PAUSE)

    def _matches(self, fact: TopicFacts | None, first: TopicFacts | None) -> str:
        """Return the difference of a further input from the first one, or from a topic of a `Rekey`, or "ok"."""
        if fact is None:
            return "missing"
        if first is not None and fact.partitions != first.partitions:
            return f"has {fact.partitions} partitions, the first input has {first.partitions}"
        return (self._fix(fact, REKEYED) or "ok") if fact.name in self._names.rekeys else "ok"

    def _loses(self, fact: TopicFacts, given: TopicFacts | None, required: Mapping[str, str] = KEPT) -> str:
        """Return the difference of a topic for dead letters, retries, commands or replies, or "ok"."""
        if given is not None and fact.partitions < given.partitions:
            return f"has {fact.partitions} partitions, the input has {given.partitions}"
        return self._fix(fact, required) or "ok"

    def _expires(self, fact: TopicFacts) -> str:
        """Return the difference of a reference topic, or "ok": it must keep the newest value of each key."""
        return self._fix(fact, {"cleanup.policy": COMPACTED["cleanup.policy"]}) or "ok"

    def _fix(self, fact: TopicFacts, wanted: Mapping[str, str]) -> str:
        """Return the settings that differ and the command that fixes them; '' if none differ."""
        now = self._topics.settings(fact.name)
        wrong = {key: value for key, value in wanted.items() if now.get(key) != value}
        if not wrong:
            return ""
        described = ", ".join(f"{key}={now.get(key)}" for key in wrong)
        setting = ",".join(f"{key}={value}" for key, value in wrong.items())
        return (
            f"differs: {described}; fix: kafka-configs --alter --entity-type topics --entity-name {fact.name} "
            f"--add-config {setting}"
        )

    def _differs(self, fact: TopicFacts, given: TopicFacts | None) -> str:
        if given is not None and fact.partitions != given.partitions:
            return f"has {fact.partitions} partitions, the input has {given.partitions}"
        wanted = dict(REQUIRED)
        if int(self._topics.settings(fact.name).get("max.message.bytes", "0")) < self._settings.kafka.message_max_bytes:
            wanted["max.message.bytes"] = str(self._settings.kafka.message_max_bytes + 1024)
        return self._fix(fact, wanted) or (
            "ok" if fact.replication >= 3 else f"ok, but only {fact.replication} replica(s)"
        )
