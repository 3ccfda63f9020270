"""Passwords and certificates that change while a service runs: it continues with the new ones, and nothing is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.test_lost_access import grant_all
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.secured import Secured, secured
from tests.support.stage import Stage

from statehold.config import load
from statehold.config.common.secret import FileSecret, Secret
from statehold.config.settings import Settings
from statehold.kafka.clients.credential_rotation import files_of, fingerprint
from statehold.ops.http.answers import HttpRequest, Rejected
from statehold.ops.http.guard import RequestGuard

PASSWORD = "STATEHOLD_KAFKA__SECURITY__SASL_PASSWORD"  # noqa: S105
#: seconds after which the broker wants a new login on every connection: one with an old password is cut off then
REAUTH = 4.0


class Fed(Stage):
    """A stage whose service has its secrets in files."""

    secrets: Path | None = None

    def settings(self, **more: str) -> Settings:
        environment = {key: value for key, value in self.environment(**more).items() if key.startswith("STATEHOLD_")}
        return load(env=environment, secrets_dir=self.secrets)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    settings = {"listener.name.secure.connections.max.reauth.ms": str(int(REAUTH * 1000))}
    with secured(tmp_path_factory.mktemp("strict"), settings) as broker:
        yield broker


@pytest.fixture
def stage(strict: Secured, tmp_path: Path) -> Iterator[Fed]:
    made = Fed(strict.servers, tmp_path, 2)
    made.create_topics()
    yield made
    made.report()
    made.close()


def put(directory: Path, password: str) -> None:
    directory.mkdir(exist_ok=True)
    fresh = directory / ".new"
    fresh.write_text(password + "\n")
    fresh.replace(directory / "kafka__security__sasl_password")


def flows(stage: Fed, local: Local) -> None:
    local.await_live(0, 1, seconds=120)
    stage.feed(200)
    stage.await_all(120)


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_changed_password_needs_no_restart(strict: Secured, stage: Fed, tmp_path: Path, protocol: str) -> None:
    user = f"{stage.names.service}-rotating"
    login, stage.secrets = strict.scram(user), tmp_path / "secrets"
    put(stage.secrets, login.pop(PASSWORD))
    grant_all(strict, stage, user)
    with Local(stage, **login, STATEHOLD_GROUP__PROTOCOL=protocol) as local:
        flows(stage, local)
        put(stage.secrets, "not-the-password")
        await_true(lambda: local.events("login_not_renewed"), "a rejected login is logged", 60)
        assert not local.events("revoked"), "and takes nothing away"
        put(stage.secrets, strict.scram(user)[PASSWORD])
        flows(stage, local)
        strict.set_password(user, "another one")
        put(stage.secrets, "another one")
        await_true(lambda: local.events("login_renewed"), "the new password is taken", 120)
        since = time.monotonic()
        await_true(lambda: time.monotonic() > since + 2 * REAUTH, "every connection has logged in again")
        refused = len(local.events("login_rejected"))
        flows(stage, local)
        assert len(local.events("login_rejected")) == refused, "some client has the old password"
        reported = str(local.log)
    stage.verify()
    for text in ("not-the-password", "another one", strict.scram(user)[PASSWORD]):
        assert text not in reported


@pytest.mark.kafka
@pytest.mark.long
def test_a_new_certificate_needs_no_restart(strict: Secured, stage: Fed) -> None:
    """The first one ends while the service runs; the brokers' restart has every client come with what it has."""
    user, lifetime = f"{stage.names.service}-cert", 30.0
    login = strict.certificate(user, seconds=lifetime + 3600)
    ends = time.time() + lifetime
    grant_all(strict, stage, user)
    with Local(stage, **login) as local:
        flows(stage, local)
        strict.authority.issue(user, f"CN={user},OU=statehold,O=tests")
        await_true(lambda: local.events("login_renewed"), "the new certificate is taken", 120)
        flows(stage, local)
        await_true(lambda: time.time() > ends + 1, "the old one has ended", 2 * lifetime)
        strict.cluster.stop(1)
        strict.cluster.start(1)
        flows(stage, local)
        assert not local.events("login_rejected")
    stage.verify()


@pytest.mark.kafka
@pytest.mark.long
def test_a_service_that_is_shut_out_comes_back_with_a_new_certificate(strict: Secured, stage: Fed) -> None:
    """Too late is no loss: it is rejected until the file changes, and continues by itself then."""
    user, lifetime = f"{stage.names.service}-late", 25.0
    login = strict.certificate(user, seconds=lifetime + 3600)
    ends = time.time() + lifetime
    grant_all(strict, stage, user)
    with Local(stage, **login) as local:
        flows(stage, local)
        await_true(lambda: time.time() > ends + 1, "it has ended", 2 * lifetime)
        strict.cluster.stop(1)
        strict.cluster.start(1)
        stage.feed(200)
        await_true(lambda: local.events("login_rejected"), "it is refused", 120)
        strict.authority.issue(user, f"CN={user},OU=statehold,O=tests")
        await_true(lambda: local.events("login_renewed"), "the new certificate is taken", 120)
        flows(stage, local)
    stage.verify()


def test_a_secret_of_a_file_is_what_the_file_says_now_and_never_shown(tmp_path: Path) -> None:
    put(tmp_path, "first\r")
    environment = {
        "STATEHOLD_KAFKA__SECURITY__PROTOCOL": "sasl_ssl",
        "STATEHOLD_KAFKA__SECURITY__SASL_MECHANISM": "SCRAM-SHA-512",
        "STATEHOLD_KAFKA__SECURITY__SASL_USERNAME": "ann",
    }
    settings = load(env=environment, secrets_dir=tmp_path)
    password = settings.kafka.security.sasl_password
    assert isinstance(password, FileSecret)
    assert password.reveal() == "first"
    assert password == Secret("first")
    put(tmp_path, "second")
    assert password.reveal() == "second"
    assert "second" not in f"{password} {password!r} {settings!r}"
    file = tmp_path / "kafka__security__sasl_password"
    assert files_of(settings) == [file]
    for broken in (b"", b"\xff"):
        file.write_bytes(broken)
        assert password.reveal() == "first", "half a file is no password"
    file.unlink()
    assert password.reveal() == "first"


def test_the_token_of_the_ops_server_changes_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "ops__token"
    file.write_text("the first token of all\n")
    guard = RequestGuard(load(env={"STATEHOLD_OPS__STATE": "on"}, secrets_dir=tmp_path).ops, exposed=True)

    def opens(token: str) -> bool:
        with contextlib.suppress(Rejected):
            guard.check_token(HttpRequest("GET", "/state", {}, {"authorization": f"Bearer {token}"}), needed=True)
            return True
        return False

    assert opens("the first token of all")
    file.write_text("the second token of all\n")
    assert opens("the second token of all")
    assert not opens("the first token of all")


def test_what_changes_in_a_file_or_directory_is_seen(tmp_path: Path) -> None:
    file, folder = tmp_path / "key.pem", tmp_path / "cas"
    folder.mkdir()
    seen = [fingerprint([file, folder])]
    for change in (
        lambda: file.write_text("a"),
        lambda: file.write_text("b"),
        lambda: (folder / "one.pem").write_text("a"),
        lambda: (folder / "one.pem").write_text("ab"),
        file.unlink,
    ):
        change()
        seen.append(fingerprint([file, folder]))
    assert len(set(seen)) == len(seen)
    assert fingerprint([file, folder]) == seen[-1]
