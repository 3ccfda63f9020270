"""The doctor on a cluster that wants TLS, a login and rights: what it sees there, and what it sees to be wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pki import DAY, Authority
from tests.support.secured import Right, Secured
from tests.support.stage import Stage

from statehold.common.access_rights import GROUP, IDS, rights_of
from statehold.common.names import Names
from statehold.config import load
from statehold.config.settings import Settings
from statehold.errors import Misconfigured
from statehold.kafka.admin.admin import Admin
from statehold.kafka.survey.cluster import ClusterSurvey
from statehold.ops.doctor.case import Case
from statehold.ops.doctor.examine import examine
from statehold.ops.doctor.report import Finding
from statehold.ports import ConsumerGroup

SSL = "STATEHOLD_KAFKA__SECURITY__SSL_"
#: the check that fails if the brokers cannot be reached, and another one
BOTH = ("brokers-reachable", "broker-versions")


@pytest.fixture(scope="module")
def stage(guarded: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(guarded.servers, tmp_path_factory.mktemp("doctor"), 2).create_topics()
    yield made
    made.close()


def look(stage: Stage, login: dict[str, str], *checks: str) -> list[Finding]:
    case = Case(load(env=login), stage.names, [stage.output], probes=False)
    return examine(case, checks)


def levels(found: list[Finding]) -> list[str]:
    return [str(each.level) for each in found]


@pytest.mark.kafka
@pytest.mark.parametrize("way", ["scram", "plain", "certificate"])
def test_it_speaks_to_advertised_addresses_as_the_settings_say(guarded: Secured, stage: Stage, way: str) -> None:
    match way:
        case "scram":
            login = guarded.scram("ann")
        case "plain":
            login = guarded.plain("ann")
        case _:
            login = guarded.certificate("ann")
    assert set(levels(look(stage, login, "brokers-reachable", "broker-versions"))) == {"PASS"}


@pytest.mark.kafka
@pytest.mark.long
def test_a_listener_that_wants_tls_is_reported(guarded: Secured, stage: Stage) -> None:
    login = guarded.scram("ann") | {"STATEHOLD_KAFKA__SECURITY__PROTOCOL": "sasl_plaintext"}
    assert "FAIL" in levels(look(stage, login, "brokers-reachable"))


@pytest.mark.kafka
@pytest.mark.long
def test_a_foreign_authority_is_reported(guarded: Secured, stage: Stage, tmp_path: Path) -> None:
    login = guarded.scram("ann") | {f"{SSL}CA_LOCATION": str(Authority(tmp_path).ca)}
    (found,) = look(stage, login, "brokers-reachable")
    assert str(found.level) == "FAIL"


@pytest.mark.kafka
def test_certificates_that_end_soon_are_reported(guarded: Secured, stage: Stage) -> None:
    """The broker's own ends in two days; of the client's, one ends in 90 days, one in five, one has ended."""
    authority = guarded.authority
    for file, seconds, wanted in (("long", 90 * DAY, set()), ("soon", 5 * DAY, {"WARN"}), ("past", 60.0, {"FAIL"})):
        made = authority.issue(file, f"CN={file}", seconds=seconds + 3600 if file != "past" else 60.0)
        login = guarded.scram("ann") | {
            f"{SSL}CERTIFICATE_LOCATION": str(made.certificate),
            f"{SSL}KEY_LOCATION": str(made.key),
        }
        found = look(stage, login, "certificates")
        assert {str(each.level) for each in found if each.about == str(made.certificate)} == wanted
        (broker,) = (each for each in found if each.about.startswith("broker 1 at"))
        assert str(broker.level) == "WARN"
        assert "ends in 2 days" in broker.reason


@pytest.mark.kafka
def test_an_invalid_certificate_is_reported_by_its_path(guarded: Secured, stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "junk.pem"
    file.write_text("-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n")
    found = look(stage, guarded.scram("ann") | {f"{SSL}CERTIFICATE_LOCATION": str(file)}, *BOTH)
    assert levels(found) == ["FAIL", "UNKNOWN"]
    assert f"kafka.security.ssl_certificate_location = {file}: " in found[0].reason
    assert "ssl.certificate.location failed: " in found[0].reason


def group_of(settings: Settings, names: Names) -> ConsumerGroup:
    return ClusterSurvey(settings, Admin(settings, names.group)).group(names.group, names.input)


def wrong(broker: Secured, what: str, directory: Path) -> tuple[dict[str, str], str]:
    """A login with one thing wrong, and what the tools must say about it."""
    if what == "password":
        login = broker.login("ann", "not-the-password", "SCRAM-SHA-512")
        return login, "invalid credentials with SASL mechanism SCRAM-SHA-512"
    missing = directory / "no-such.pem"
    if what == "missing CA file":
        said = f"kafka.security.ssl_ca_location = {missing} cannot be read: No such file or directory"
        return broker.scram("ann") | {f"{SSL}CA_LOCATION": str(missing)}, said
    return broker.scram("ann") | {f"{SSL}CA_LOCATION": str(Authority(directory).ca)}, "certificate verify failed"


@pytest.mark.kafka
@pytest.mark.parametrize("what", ["password", pytest.param("CA", marks=pytest.mark.long), "missing CA file"])
def test_a_rejected_login_is_named(guarded: Secured, stage: Stage, tmp_path: Path, what: str) -> None:
    login, said = wrong(guarded, what, tmp_path)
    failed, other = look(stage, login, *BOTH)
    assert (str(failed.level), str(other.level)) == ("FAIL", "UNKNOWN")
    assert said in failed.reason
    assert "no broker answers" not in failed.reason
    assert said in other.reason
    settings = load(env=login)
    with pytest.raises(Misconfigured, match=re.escape(said)):  # `statehold status` asks so
        group_of(settings, stage.names)


@pytest.mark.kafka
def test_missing_rights_are_reported_with_the_command_that_grants_them(guarded: Secured, stage: Stage) -> None:
    user = f"{stage.names.service}-doctor"
    login = guarded.scram(user)
    rights = rights_of("service", stage.names, [stage.output])
    rules = [Right(user, right.operation, right.kind, right.name, right.prefixed) for right in rights]
    guarded.grant(*rules, Right(user, "DESCRIBE", "cluster", "kafka-cluster"))
    assert levels(look(stage, login, "rights")) == ["PASS"]
    for right, rule in zip(rights, rules, strict=True):
        if right.kind in (GROUP, IDS) or right.name in (stage.names.control, stage.names.input):
            continue  # there is no group yet and no control topic; of ids and the input see tests/tools
        with guarded.without(rule):
            found = [each for each in look(stage, login, "rights") if str(each.level) != "PASS"]
        (one,) = found
        assert one.about.startswith(right.name)
        assert right.rule(f"User:{user}") in one.fix
        assert one.reason == f"{right.operation} is not allowed"
