"""F35: rights revoked, a wrong password, an expired certificate: logged, waited for, nothing lost, no storm."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.local_service import Local
from tests.support.processes import Process, await_true
from tests.support.secured import Right, Secured, secured
from tests.support.stage import Stage

from statehold.common.access_rights import rights_of
from statehold.common.exit_codes import Exit
from statehold.errors import AccessLost
from statehold.worker import failed

pytestmark = pytest.mark.kafka
#: log lines that a process may write while it waits: it reports once a minute, or at each try of 30 s
LINES_PER_MINUTE = 40
#: logins that a process of two partitions may try: each of its dozen connections once a second
LOGINS_PER_SECOND = 15


@pytest.fixture
def stage(guarded: Secured, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(guarded.servers, tmp_path, 2).create_topics()
    yield made
    made.report()
    made.close()


def grant_all(broker: Secured, stage: Stage, user: str) -> list[Right]:
    wanted = rights_of("service", stage.names, [stage.output])
    granted = [Right(user, right.operation, right.kind, right.name, right.prefixed) for right in wanted]
    broker.grant(*granted)
    return granted


def lines(process: Process) -> int:
    return len(process.log.read_bytes().splitlines())


def test_a_right_that_is_revoked_is_named_and_continues_by_itself(
    guarded: Secured, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the next test, without the half minute between two tries."""
    monkeypatch.setitem(failed._AGAIN_AFTER, AccessLost, 1.0)
    user = f"{stage.names.service}-near"
    login = guarded.scram(user)
    lost = next(right for right in grant_all(guarded, stage, user) if right.name == stage.output)
    with Local(stage, **login) as local:
        local.await_live(0, 1)
        stage.feed(200)
        stage.await_all()
        with guarded.without(lost):
            stage.feed(200, keys=100)
            for each in (0, 1):
                assert f"User:{user} may not: WRITE on topic {lost.name}" in local.await_failed(each, AccessLost)
        stage.await_all()
    stage.verify()


@pytest.mark.long
@pytest.mark.parametrize(
    ("operation", "kind"), [("WRITE", "output"), ("WRITE", "transactional-id")], ids=["output", "transactional-id"]
)
def test_a_right_that_is_revoked_is_waited_for(guarded: Secured, stage: Stage, operation: str, kind: str) -> None:
    user = f"{stage.names.service}-live"
    login = guarded.scram(user)
    granted = grant_all(guarded, stage, user)
    process = stage.process("live", **login).await_live(0, 1)
    stage.feed(200)
    stage.await_all()
    lost = next(r for r in granted if r.operation == operation and (r.name == stage.output or r.kind == kind))
    began = lines(process), time.monotonic()
    with guarded.without(lost):
        stage.feed(200, keys=100)
        failed = process.await_event("failed", 2)
        assert failed["error"] == "AccessLost"
        assert lost.name in failed["cause"]
        assert f"User:{user} may not: {operation} on" in failed["cause"]
        assert process.running
        minutes = max(1.0, (time.monotonic() - began[1]) / 60)
        assert lines(process) - began[0] < LINES_PER_MINUTE * minutes + 20
    stage.feed(100)
    stage.await_all(180)
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_a_right_that_is_revoked_ends_the_process_where_that_is_wanted(guarded: Secured, stage: Stage) -> None:
    user = f"{stage.names.service}-exit"
    login = guarded.scram(user)
    granted = grant_all(guarded, stage, user)
    process = stage.process("exit", **login, PROBE_CLI="1", STATEHOLD_FAILURE__ON_PARTITION_FAILURE="exit")
    process.await_live(0, 1)
    stage.feed(200)
    stage.await_all()
    with guarded.without(next(r for r in granted if r.name == stage.output)):
        stage.feed(200)
        await_true(lambda: process.exit_code is not None, "it ends", 120)
        text = process.log.read_text()
        assert process.exit_code == Exit.PARTITION_FAILED, text
        assert f"User:{user} may not: WRITE on topic {stage.output}" in text
    process.start().await_live(0, 1)
    stage.await_all(120)
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_an_expired_certificate_ends_the_start(guarded: Secured, stage: Stage) -> None:
    user = f"{stage.names.service}-old"
    login = guarded.certificate(user, seconds=1)  # from an hour ago on
    process = stage.process("old", **login, PROBE_CLI="1")
    await_true(lambda: process.exit_code is not None, "it ends", 120)
    text = process.log.read_text()
    assert process.exit_code == Exit.CONFIGURATION, text
    assert "AccessRefused" in text
    assert "certificate" in text


def test_a_wrong_password_ends_the_start(guarded: Secured, stage: Stage) -> None:
    user = f"{stage.names.service}-wrong"
    guarded.scram(user)
    login = guarded.login(user, "not-the-password-at-all", "SCRAM-SHA-512")
    process = stage.process("wrong", **login, PROBE_CLI="1")
    await_true(lambda: process.exit_code is not None, "it ends", 120)
    text = process.log.read_text()
    assert process.exit_code == Exit.CONFIGURATION, text
    assert "AccessRefused" in text
    assert "uthentication" in text
    assert "not-the-password-at-all" not in text


# On a broker of their own, which is started again: connections that are up stay up.


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Secured, Stage]]:
    with secured(tmp_path) as broker:
        stage = Stage(broker.servers, tmp_path, 2).create_topics()
        yield broker, stage
        stage.report()
        stage.close()


def failures(broker: Secured) -> int:
    """Logins and handshakes that the broker has refused."""
    log = (broker.cluster.directory / "broker-1" / "broker.log").read_text(errors="replace")
    return len(re.findall(r"Failed authentication with", log))


def waits_without_a_storm(broker: Secured, process: Process) -> None:
    reported = process.await_event("login_rejected", seconds=120)
    assert "kafka.security" in reported["cause"]
    began, before, written = time.monotonic(), failures(broker), lines(process)
    await_true(lambda: time.monotonic() - began > 20, "twenty seconds have passed")
    seconds = time.monotonic() - began
    attempts = (failures(broker) - before) / seconds
    print(f"{attempts:.1f} refused logins a second, {lines(process) - written} log lines in {seconds:.0f} s")
    assert 0 < attempts < LOGINS_PER_SECOND
    assert lines(process) - written < LINES_PER_MINUTE
    assert process.running


@pytest.mark.long
def test_a_password_that_was_changed_is_waited_for(own: tuple[Secured, Stage]) -> None:
    broker, stage = own
    login = broker.scram("sam")
    password = login["STATEHOLD_KAFKA__SECURITY__SASL_PASSWORD"]
    grant_all(broker, stage, "sam")
    process = stage.process("sam", **login).await_live(0, 1)
    stage.feed(300)
    stage.await_all()
    broker.set_password("sam", "another")
    broker.cluster.stop(1)
    broker.cluster.start(1)
    stage.feed(300)
    waits_without_a_storm(broker, process)
    broker.set_password("sam", password)
    stage.await_all(240)
    assert process.stop() == 0
    stage.verify()


@pytest.mark.long
def test_a_certificate_that_expires_is_reported(own: tuple[Secured, Stage]) -> None:
    broker, stage = own
    lifetime = 40.0
    ends = time.time() + lifetime
    login = broker.certificate("cora", seconds=lifetime + 3600)
    grant_all(broker, stage, "cora")
    process = stage.process("cora", **login).await_live(0, 1)
    stage.feed(300)
    stage.await_all()
    await_true(lambda: time.time() > ends + 1, "the certificate has expired", 2 * lifetime)
    stage.feed(100)
    stage.await_all()  # what is connected stays
    broker.cluster.stop(1)
    broker.cluster.start(1)
    stage.feed(300)
    waits_without_a_storm(broker, process)
    assert process.stop(120) in (0, Exit.STUCK)
    broker.authority.issue("cora", "CN=cora,OU=statehold,O=tests")
    process.start().await_live(0, 1)
    stage.await_all(240)
    assert process.stop() == 0
    stage.verify()
