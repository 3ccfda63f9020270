"""Checks the service's topics, and two internal topics of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from statistics import median
from typing import ClassVar, Final

from statehold.admin.topics import COMPACTED, REKEYED, REPLIES, REPLIES_EXPIRE, REQUIRED
from statehold.common.visible import distance, visible_time
from statehold.kafka.survey.keys import newest_keys
from statehold.kafka.survey.partitioners import NAMED, KeySample, mismatches
from statehold.ops.doctor.case import OFFSETS, TRANSACTIONS, Case
from statehold.ops.doctor.report import Finding, FindingsOf

#: a partition counts as skewed above this number of records and this multiple of the median
_SKEW_RECORDS: Final = 1000
_SKEW_TIMES: Final = 4.0
#: milliseconds that a record may be ahead of the clock if time.max_ahead is off: the brokers' own default from 4.0 on
_UNUSUAL: Final = 3_600_000
#: milliseconds of retention below which a reply may be gone before it is read
_SHORT: Final = 60_000


class Topics:
    name: ClassVar = "topics"
    looks_at: ClassVar = "whether input, outputs, changelog, snapshot and reference topics exist"
    fails: ClassVar = "one is missing"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = FindingsOf(self), case.names
        command = f"statehold topics create {names.options} --start-at ..."
        for topic in (*names.inputs, names.changelog, names.snapshot, *case.outputs):
            if case.topics[topic] is None:
                more = f" --output {topic}" if topic in case.outputs else ""
                more += " --partitions N" if topic not in (names.changelog, names.snapshot) else ""
                yield seen.failed(topic, "is missing", command + more)
        for topic in case.references:
            if case.topics[topic] is None:
                settings = " ".join(f"--config {key}={value}" for key, value in COMPACTED.items())
                fix = f"ask its owner to run: {case.kafka('kafka-topics', f'--create --topic {topic} {settings}')}"
                yield seen.failed(topic, "is missing: the handler reads reference data from it", fix)


class Replication:
    name: ClassVar = "replication"
    looks_at: ClassVar = (
        "replicas and min.insync.replicas of input, outputs, changelog, snapshot, reference topics, "
        f"`{OFFSETS}`, `{TRANSACTIONS}`"
    )
    fails: ClassVar = (
        "min.insync.replicas = replication factor > 1 (one broker's death stops everything); 1 of several (an "
        "acknowledged record may be on one disk only); one replica in production"
    )
    warns: ClassVar = "one replica in development; two in production"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        for topic in [*(case.data if case.given is not None else ()), OFFSETS, TRANSACTIONS]:
            if topic not in case.topics:
                yield seen.unknown(topic, "is not shown to this principal (DESCRIBE)")
                continue
            found = case.topics[topic]
            if found is None:
                continue  # an internal topic that was never needed
            least = int(case.topic_setting(topic, "min.insync.replicas"))
            yield from self._judge(case, seen, topic, found.replication, least)

    def _judge(self, case: Case, seen: FindingsOf, topic: str, replicas: int, least: int) -> Iterator[Finding]:
        more = _reassign(case, topic)
        if replicas == 1:
            report = seen.failed if case.strict else seen.warned
            yield report(topic, "one replica: nothing survives the loss of its broker", more)
        elif least >= replicas:
            yield seen.failed(
                topic,
                f"min.insync.replicas {least} of {replicas} replicas: the death of one broker stops every write",
                case.set_topic(topic, "min.insync.replicas", replicas - 1 if replicas > 2 else 1),
            )
        elif least == 1:
            yield seen.failed(
                topic,
                f"min.insync.replicas 1 of {replicas}: an acknowledged record may be on one disk only",
                case.set_topic(topic, "min.insync.replicas", 2) if replicas > 2 else more,
            )
        elif replicas == 2 and case.strict:
            yield seen.warned(topic, "two replicas", more)


def _reassign(case: Case, topic: str) -> str:
    """Return the command that gives a topic three replicas, without moving leaders."""
    brokers, found = [each.id for each in case.brokers], case.topic(topic)
    if len(brokers) < 3:
        return f"add brokers: the cluster has {len(brokers)}, three replicas need three"
    plan = []
    for each in found.partitions:
        others = [broker for broker in brokers if broker not in each.replicas]
        plan.append({"topic": topic, "partition": each.partition, "replicas": [*each.replicas, *others][:3]})
    file = f"/tmp/{topic}.json"  # noqa: S108 - for the person who pastes it
    text = json.dumps({"version": 1, "partitions": plan}, separators=(",", ":"))
    command = case.kafka("kafka-reassign-partitions", f"--reassignment-json-file {file} --execute")
    return f"echo '{text}' > {file}; {command}"


class CleanupPolicy:
    name: ClassVar = "cleanup-policy"
    looks_at: ClassVar = (
        "retention, cleanup.policy and timestamp type of changelog, snapshot and each topic of a Rekey; cleanup.policy "
        "of input and reference topics; both of the topic of replies"
    )
    fails: ClassVar = (
        "they differ from what `statehold topics create` sets: state would be deleted or compacted away; a reference "
        "topic is not only compacted; replies are compacted"
    )
    warns: ClassVar = (
        "the input is compacted: a replay would miss records; replies are kept permanently, or for less than a minute"
    )

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = FindingsOf(self), case.names
        own = dict.fromkeys((names.changelog, names.snapshot), REQUIRED) | dict.fromkeys(names.rekeys, REKEYED)
        for topic in (each for each in own if case.topics[each] is not None):
            for key, wanted in own[topic].items():
                value = case.topic_setting(topic, key)
                if value != wanted:
                    yield seen.failed(topic, f"{key} is {value}, must be {wanted}", case.set_topic(topic, key, wanted))
        for topic in case.references:
            if case.topics[topic] is None:
                continue
            policy = case.topic_setting(topic, "cleanup.policy")
            if policy != "compact":
                yield seen.failed(
                    topic,
                    f"cleanup.policy is {policy}, must be compact: processes that start later would lack rows",
                    case.set_topic(topic, "cleanup.policy", "compact"),
                )
        if names.replies in case.outputs and case.topics[names.replies] is not None:
            yield from self._of_replies(case, seen, names.replies)
        for topic in names.inputs:
            case.topic(topic)
            policy = case.topic_setting(topic, "cleanup.policy")
            if "compact" in policy:
                yield seen.warned(
                    topic,
                    f"cleanup.policy is {policy}: records vanish behind newer ones of their key, also unread ones",
                    case.set_topic(topic, "cleanup.policy", "delete"),
                )

    def _of_replies(self, case: Case, seen: FindingsOf, topic: str) -> Iterator[Finding]:
        policy, kept = case.topic_setting(topic, "cleanup.policy"), int(case.topic_setting(topic, "retention.ms"))
        if policy != REPLIES["cleanup.policy"]:
            yield seen.failed(
                topic,
                f"cleanup.policy is {policy}, must be delete: a reply vanishes behind a newer one to the same key",
                case.set_topic(topic, "cleanup.policy", REPLIES["cleanup.policy"]),
            )
        fix = case.set_topic(topic, "retention.ms", REPLIES_EXPIRE["retention.ms"])
        if kept < 0 and int(case.topic_setting(topic, "retention.bytes")) < 0:
            yield seen.warned(
                topic, "keeps replies permanently; no asker reads an old one, and the state has the answers", fix
            )
        elif 0 <= kept < _SHORT:
            yield seen.warned(topic, f"retention.ms is {kept}: a reply may be deleted before its asker reads it", fix)


class PartitionCounts:
    name: ClassVar = "partition-counts"
    looks_at: ClassVar = (
        "partitions of input, changelog and snapshot topic, and the number in each last commit record; those of the "
        "topics of dead letters, retries and replies"
    )
    fails: ClassVar = (
        "they differ: keys have moved, or will find no state; dead letters, retries or replies have fewer than the "
        "input"
    )
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, names = FindingsOf(self), case.names
        counts = {topic: len(case.topic(topic).partitions) for topic in names.inputs}
        # An interrupted repartition has extended changelog and snapshot topic, and no input yet.
        counts |= {topic: len(case.topic(topic).partitions) for topic in (names.changelog, names.snapshot)}
        widest, count = max(counts.items(), key=lambda each: each[1])
        command = f"statehold state repartition MODULE:SERVICE --to {count} --why TEXT --yes"
        fix = f"stop service and producers, then: {command}"
        for topic, had in counts.items():
            if had != count:
                yield seen.failed(topic, f"has {had} partitions, {widest} has {count}", fix)
        for each in case.surveys:
            if each.commit_record is not None and each.commit_record.partitions != count:
                yield seen.failed(
                    f"{names.input}[{each.partition}]",
                    f"its state was built with {each.commit_record.partitions} partitions, the topic has {count} now",
                    fix,
                )
        for topic in filter(names.follows_input, case.outputs):
            had, needed = len(case.topic(topic).partitions), counts[names.input]
            if had < needed:
                more = case.kafka("kafka-topics", f"--alter --topic {topic} --partitions {needed}")
                yield seen.failed(topic, f"has {had} partitions, {names.input} has {needed}", more)


class TopicIds:
    name: ClassVar = "topic-ids"
    looks_at: ClassVar = "the id of each topic against the one in each last commit record"
    fails: ClassVar = "a topic was deleted and created again: positions mean other records"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        reported: set[str] = set()
        for place, each in zip(case.places, case.surveys, strict=True):
            recorded = each.commit_record.topic_ids if each.commit_record is not None else {}
            for topic, known in recorded.items():
                now = place.topic_ids.get(topic, known)
                if now != known and topic not in reported:
                    reported.add(topic)
                    yield seen.failed(
                        topic,
                        f"was deleted and created again: id {known} in the last commit records, {now} now",
                        "restore the old topic, or see TopicReplaced in the runbook",
                    )


class MessageSize:
    name: ClassVar = "message-size"
    looks_at: ClassVar = "max.message.bytes of outputs, changelog and snapshot against kafka.message_max_bytes"
    fails: ClassVar = "a topic accepts less than the service may send: a delta, a chunk or an output would be rejected"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, most = FindingsOf(self), case.settings.kafka.message_max_bytes
        for topic in case.data:
            read = topic in (*case.names.inputs, *case.references)
            if read and topic not in (*case.outputs, *case.names.rekeys):
                continue
            taken = int(case.topic_setting(topic, "max.message.bytes"))
            if taken < most:
                yield seen.failed(
                    topic,
                    f"takes {taken} bytes, kafka.message_max_bytes is {most}",
                    case.set_topic(topic, "max.message.bytes", most + 1024),
                )


class PartitionsNow:
    name: ClassVar = "partitions-now"
    looks_at: ClassVar = "leader and in-sync replicas of every partition, now"
    fails: ClassVar = "a partition has no leader, or fewer replicas in sync than min.insync.replicas"
    warns: ClassVar = "a replica is out of sync"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        for topic in [*(case.data if case.given is not None else ()), OFFSETS, TRANSACTIONS]:
            if topic not in case.topics:
                yield seen.unknown(topic, "is not shown to this principal (DESCRIBE)")
                continue
            found = case.topics[topic]
            for each in found.partitions if found is not None else ():
                where = f"{topic}[{each.partition}]"
                away = sorted(set(each.replicas) - set(each.in_sync))
                if each.leader < 0:
                    fix = case.kafka("kafka-topics", f"--describe --topic {topic}") + ", then start its brokers"
                    yield seen.failed(where, f"has no leader; replicas on brokers {list(each.replicas)}", fix)
                elif away:
                    least = int(case.topic_setting(topic, "min.insync.replicas"))
                    report = seen.failed if len(each.in_sync) < least else seen.warned
                    yield report(
                        where,
                        f"{len(each.in_sync)} of {len(each.replicas)} replicas in sync, needed {least}",
                        f"start or fix broker {', '.join(map(str, away))}",
                    )


class Skew:
    name: ClassVar = "record-skew"
    looks_at: ClassVar = "records that each partition of an input holds"
    fails: ClassVar = "-"
    warns: ClassVar = f"one holds more than {_SKEW_TIMES:g} times the median: its worker does most of the work"

    def look(self, case: Case) -> Iterator[Finding]:
        for topic in case.names.inputs:
            yield from self._look(case, topic)

    def _look(self, case: Case, topic: str) -> Iterator[Finding]:
        seen, held = FindingsOf(self), {}
        for each in case.topic(topic).partitions:
            start, _, end = case.cluster.ends(topic, each.partition)
            held[each.partition] = end - start
        usual = median(held.values())
        for partition, count in held.items():
            if len(held) > 1 and count >= _SKEW_RECORDS and count > _SKEW_TIMES * max(usual, 1):
                yield seen.warned(
                    f"{topic}[{partition}]",
                    f"holds {count} records, the median is {usual:.0f}",
                    "choose a key with more different values, or one that is spread; statehold cat "
                    f"{topic} --partition {partition} -n 100 shows the keys",
                )


class KeyPartitioners:
    name: ClassVar = "key-partitioners"
    looks_at: ClassVar = (
        "the keys of each input's newest records: which partitioner they follow (murmur2 as Java's, CRC32 as "
        "librdkafka's default, FNV-1a, or none of these)"
    )
    fails: ClassVar = "two inputs have a key in different partitions, or follow different partitioners: it never meets"
    warns: ClassVar = "a key is in several partitions of one input: each has a state of its own for it"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        samples = [
            newest_keys(case.settings, case.names.group, case.cluster, topic, len(case.topic(topic).partitions))
            for topic in case.names.inputs
            if topic not in case.names.rekeys  # because their keys are other ones
        ]
        for each in samples:
            if each.scattered:
                key, where = min(each.scattered.items())
                yield seen.warned(
                    each.topic,
                    f"{len(each.scattered)} of {len(each.found)} keys are in several partitions, such as {key!r} in "
                    f"{', '.join(map(str, sorted(where)))}; {_followed(each)}",
                    "let all its producers choose partitions by key, in one way: " + _AS_JAVA,
                )
            else:
                yield seen.passed(each.topic, _followed(each))
        for one, other, reason in mismatches(samples):
            yield seen.failed(
                f"{one.topic}, {other.topic}",
                f"{reason}; {one.topic}: {_followed(one)}; {other.topic}: {_followed(other)}",
                f"give the producers of both one partitioner: {_AS_JAVA}; then write the records of the changed one "
                f"again, into a new topic",
            )


#: the setting that places keys where Java's producers do
_AS_JAVA: Final = 'clients of librdkafka need "partitioner": "murmur2_random" for Java\'s and statehold\'s'


def _followed(sample: KeySample) -> str:
    """Return a text about the partitioner of a sample."""
    keys = f"{len(sample.found)} key{'s' * (len(sample.found) != 1)}"
    if not sample.found:
        return "no keys in its newest records"
    if sample.partitions == 1:
        return "one partition holds all keys"
    if sample.followed:
        return f"{keys} follow {NAMED[sample.followed]}"
    if not sample.enough:
        return f"{keys} are too few to know their partitioner"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in sample.shares().items())
    return f"{keys} follow no partitioner that statehold knows ({shares})"


class RecordTimes:
    name: ClassVar = "record-times"
    looks_at: ClassVar = "the newest timestamp in each partition of the inputs, against this machine's clock"
    fails: ClassVar = "-"
    warns: ClassVar = (
        "it is ahead by more than `time.max_ahead`, or by more than an hour if that is off: such a record has closed "
        "windows and made later records late, or will"
    )

    def look(self, case: Case) -> Iterator[Finding]:
        seen, allowed = FindingsOf(self), case.settings.time.max_ahead
        clock = int(case.wall() * 1000)
        limit = clock + (_UNUSUAL if allowed == "off" else int(allowed * 1000))
        for topic in case.names.inputs:
            newest = 0
            for each in case.topic(topic).partitions:
                found = case.cluster.newest(topic, each.partition)
                if found is None:
                    continue
                newest = max(newest, found[1])
                if found[1] > limit:
                    yield self._warned(case, f"{topic}[{each.partition}]@{found[0]}", found[1], clock)
            if 0 < newest <= limit:
                where = f"{distance(abs(clock - newest))} {'ahead of' if newest > clock else 'behind'}"
                yield seen.passed(
                    topic, f"the newest record is of {visible_time(newest)}, {where} this machine's clock"
                )

    def _warned(self, case: Case, record: str, time: int, clock: int) -> Finding:
        reason = f"has the timestamp {visible_time(time)}, {distance(time - clock)} ahead of this machine's clock; "
        if case.settings.time.max_ahead == "off":
            reason += "time.max_ahead is off, so it advances the time of the partition"
            fix = (
                "correct the producer's clock and set time.max_ahead; if all records are late already, stop the "
                "service: statehold repair time MODULE:SERVICE --to TIME --why TEXT --dry-run"
            )
        else:
            reason += "time.max_ahead holds it back"
            fix = f"correct the producer's clock; statehold cat shows the record: {record}"
        return FindingsOf(self).warned(record, reason, fix)


CHECKS = (
    Topics,
    Replication,
    CleanupPolicy,
    PartitionCounts,
    TopicIds,
    MessageSize,
    PartitionsNow,
    Skew,
    KeyPartitioners,
    RecordTimes,
)
