"""Checks the brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from statehold.ops.doctor.case import Case, NotAsked
from statehold.ops.doctor.report import Finding, FindingsOf

#: the first release whose transactions carry group metadata and whose brokers check partitions of transactions, and
#: the level of `metadata.version` that its brokers support at least
OLDEST: Final = "3.9"
_OLDEST_LEVEL: Final = 21
_METADATA: Final = "metadata.version"
_SOON_DAYS: Final = 30
#: settings that each broker has of its own
_OWN: Final = (
    "advertised.listeners",
    "broker.id",
    "broker.rack",
    "client.quota.callback.class",
    "controller.quorum.bootstrap.servers",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "node.id",
)
_SECRET_OR_LOCAL: Final = ("ssl.keystore", "ssl.truststore", "listener.name.", "password", "sasl.jaas.config")


class Reachable:
    name: ClassVar = "brokers-reachable"
    looks_at: ClassVar = "every address that the brokers advertise, asked from this machine (TCP, TLS, ApiVersions)"
    fails: ClassVar = "an address does not answer, so a client that needs it hangs"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        for broker, answer in case.spoken.items():
            if isinstance(answer, str):
                yield seen.failed(
                    broker,
                    f"advertised, but does not answer from here: {answer}",
                    f"start that broker, open the way to it, or fix its advertised.listeners; try: nc -vz "
                    f"{broker.rpartition(' at ')[2].replace(':', ' ')}",
                )


class Certificates:
    name: ClassVar = "certificates"
    looks_at: ClassVar = "the expiry of the brokers' certificates and of this client's"
    fails: ClassVar = "one has expired"
    warns: ClassVar = f"one expires within {_SOON_DAYS} days"

    def look(self, case: Case) -> Iterator[Finding]:
        try:
            from cryptography import x509
        except ImportError:
            raise NotAsked("certificates are read with an extra: pip install 'statehold[cli]'") from None
        shown = {name: each.certificate for name, each in case.spoken.items() if not isinstance(each, str)}
        found = {name: x509.load_der_x509_certificate(each) for name, each in shown.items() if each is not None}
        renew = dict.fromkeys(found, "renew it, and give it to the broker (ssl.keystore.location)")
        if own := case.settings.kafka.security.ssl_certificate_location:
            try:
                found[own] = x509.load_pem_x509_certificate(Path(own).read_bytes())
                renew[own] = "renew it; clients read it when they are made"
            except (OSError, ValueError) as error:
                yield FindingsOf(self).failed(
                    own, f"cannot be read: {error}", "see kafka.security.ssl_certificate_location"
                )
        for name, each in found.items():
            days = (each.not_valid_after_utc.timestamp() - case.wall()) / 86_400
            text = (
                f"the certificate {'ends in' if days >= 0 else 'has ended'} {abs(days):.0f} days{' ago' * (days < 0)}"
            )
            if days < _SOON_DAYS:
                report = FindingsOf(self).failed if days < 0 else FindingsOf(self).warned
                yield report(name, text, renew[name])


class Versions:
    name: ClassVar = "broker-versions"
    looks_at: ClassVar = "metadata.version of each broker, and whether the cluster's own upgrade was finished"
    fails: ClassVar = f"a broker is older than {OLDEST}"
    warns: ClassVar = "brokers of several releases; a finalized metadata version below what all of them support"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        answers = {broker: each for broker, each in case.spoken.items() if not isinstance(each, str)}
        if not answers:
            raise NotAsked("no broker answers")
        for broker, answer in answers.items():
            level = answer.supported.get(_METADATA)
            if level is None:
                yield seen.unknown(broker, "reports no metadata.version: older than 3.3, or not Apache Kafka")
            elif level < _OLDEST_LEVEL:
                yield seen.failed(
                    broker,
                    f"supports metadata.version up to {level}, needed {_OLDEST_LEVEL} (Kafka {OLDEST})",
                    f"upgrade it to {OLDEST} or later",
                )
        levels = sorted({each.supported[_METADATA] for each in answers.values() if _METADATA in each.supported})
        if len(levels) > 1:
            yield seen.warned(
                "cluster",
                f"brokers support metadata.version up to {', '.join(map(str, levels))}: they are of several releases",
                "finish the rolling upgrade",
            )
            return
        finalized = {each.finalized.get(_METADATA, 0) for each in answers.values()}
        if levels and 0 < min(finalized) < levels[0]:
            yield seen.warned(
                "cluster",
                f"metadata.version is {min(finalized)}, all brokers support {levels[0]}: an upgrade was not finished",
                case.kafka("kafka-features", f"upgrade --feature {_METADATA}={levels[0]}"),
            )


class SettingsDiffer:
    name: ClassVar = "broker-settings-differ"
    looks_at: ClassVar = "every setting of every broker, but for addresses, ids and directories"
    fails: ClassVar = "-"
    warns: ClassVar = "brokers have different values, so behaviour depends on the leader"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        settings_of = {each.id: case.broker_settings(each.id) for each in case.brokers}
        if not any(settings_of.values()):
            raise NotAsked("the brokers do not show their settings")
        for key in sorted(set().union(*settings_of.values())):
            if key in _OWN or any(part in key for part in _SECRET_OR_LOCAL):
                continue
            values = {broker: settings.get(key) for broker, settings in settings_of.items()}
            if len(set(values.values())) > 1:
                shown = ", ".join(f"{broker}: {value}" for broker, value in values.items())
                yield seen.warned(
                    key,
                    f"differs between brokers ({shown})",
                    case.kafka(
                        "kafka-configs", f"--alter --entity-type brokers --entity-default --add-config {key}=..."
                    )
                    + ", or the same line in each broker's properties",
                )


class UncleanElection:
    name: ClassVar = "unclean-election"
    looks_at: ClassVar = "unclean.leader.election.enable of the brokers and of each topic"
    fails: ClassVar = "it is on: a lagging replica may lead, and acknowledged records are lost"
    warns: ClassVar = "-"

    def look(self, case: Case) -> Iterator[Finding]:
        seen, key = FindingsOf(self), "unclean.leader.election.enable"
        for broker, value in case.setting(key).items():
            if value == "true":
                yield seen.failed(
                    f"broker {broker}",
                    "on: acknowledged records may be lost in an election",
                    case.kafka(
                        "kafka-configs", f"--alter --entity-type brokers --entity-default --add-config {key}=false"
                    ),
                )
        for topic in case.data if case.given is not None else ():
            if case.topic_setting(topic, key) == "true":
                yield seen.failed(
                    topic, "on: acknowledged records may be lost in an election", case.set_topic(topic, key, "false")
                )


class Clocks:
    name: ClassVar = "clocks"
    looks_at: ClassVar = "each broker's clock against this machine's, by records on a topic that is deleted again"
    fails: ClassVar = "they differ by more than sixty times doctor.clock_tolerance"
    warns: ClassVar = "they differ by more than doctor.clock_tolerance, beyond what the measurement leaves open"

    def look(self, case: Case) -> Iterator[Finding]:
        if not case.probes:
            raise NotAsked("it writes a record, which was not allowed (--no-probe, or at the start of a service)")
        seen, tolerance = FindingsOf(self), case.settings.doctor.clock_tolerance
        prefix = f"{case.given.group if case.given else 'statehold'}.doctor-"
        for clock in case.cluster.clocks([each.id for each in case.brokers], prefix, case.wall):
            text = f"{clock.ahead:+.3f} s against this machine, give or take {clock.uncertainty:.3f} s"
            beyond = abs(clock.ahead) - clock.uncertainty
            report = seen.failed if beyond > 60 * tolerance else seen.warned if beyond > tolerance else None
            if report is not None:
                yield report(
                    f"broker {clock.broker}", text, "on the one that is wrong: chronyc makestep; chronyc tracking"
                )


class LogDirectory:
    name: ClassVar = "log-directory"
    looks_at: ClassVar = "log.dirs of each broker"
    fails: ClassVar = "it is temporary, and service.mode is production"
    warns: ClassVar = "it is temporary (/tmp, /var/tmp, /dev/shm), in development"

    def look(self, case: Case) -> Iterator[Finding]:
        seen = FindingsOf(self)
        for broker, value in case.setting("log.dirs").items():
            for place in value.split(","):
                if place.strip().startswith(("/tmp", "/var/tmp", "/dev/shm")):  # noqa: S108 - the places to find
                    report = seen.failed if case.strict else seen.warned
                    yield report(
                        f"broker {broker}",
                        f"keeps its data in {place.strip()}, which a restart of the machine may empty",
                        case.set_brokers("log.dirs", "/var/lib/kafka"),
                    )


CHECKS = (Reachable, Certificates, Versions, SettingsDiffer, UncleanElection, Clocks, LogDirectory)
