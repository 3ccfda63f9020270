"""OAUTHBEARER by settings: from a real token endpoint, and from a file that another program keeps fresh."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.security.test_logins import shown, topic
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.secured import Secured
from tests.support.stage import Stage
from tests.support.tokens import TokenEndpoint, unsigned

from statehold.common.access_rights import rights_of
from statehold.config import SettingsError, load
from statehold.config.token import TokenFile

__all__ = ["topic"]
SECURITY = "STATEHOLD_KAFKA__SECURITY__"


def by_token(broker: Secured, **more: str) -> dict[str, str]:
    given = {f"{SECURITY}{key.upper()}": value for key, value in more.items()}
    own = {f"{SECURITY}PROTOCOL": "sasl_ssl", f"{SECURITY}SASL_MECHANISM": "OAUTHBEARER"}
    return broker.tls(broker.secure) | own | given


def by_endpoint(broker: Secured, endpoint: TokenEndpoint, secret: str) -> dict[str, str]:
    login = by_token(broker, oauth_token_url=endpoint.url, oauth_client_id="us", oauth_client_secret=secret)
    return login | {"STATEHOLD_KAFKA__EXTRA__HTTPS_CA_LOCATION": str(broker.authority.ca)}


@pytest.mark.kafka
def test_a_service_logs_in_with_tokens_of_an_endpoint(
    guarded: Secured, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a client with another secret does not get in: that takes it ten seconds, in parallel with the rest."""
    stage = Stage(guarded.servers, tmp_path, 2).create_topics()
    for right in rights_of("service", stage.names, [stage.output]):
        guarded.allow("tina", right.operation, right.kind, right.name, prefixed=right.prefixed)
    # so short-lived that every client needs another one while the test runs
    with (
        TokenEndpoint(guarded.identity, "us", "hush", "tina", seconds=10) as endpoint,
        TokenEndpoint(guarded.identity, "us", "hush", "tina") as theirs,
        ThreadPoolExecutor(1) as in_parallel,
    ):
        stranger = in_parallel.submit(shown, by_endpoint(guarded, theirs, "wrong-and-long"), stage.names.input)
        with Local(stage, **by_endpoint(guarded, endpoint, "hush")) as local:
            local.await_live(0, 1)
            began = endpoint.given
            stage.feed(200)
            stage.await_all()
            await_true(lambda: endpoint.given >= began + 3, "tokens are renewed")
            stage.feed(200)
            stage.await_all()
            assert not local.events("failed")
        assert not endpoint.refused
        assert not stranger.result(120)
        assert theirs.refused
    stage.verify()
    stage.close()
    out = capfd.readouterr()
    assert "wrong-and-long" not in out.out + out.err


@pytest.mark.kafka
@pytest.mark.long
def test_a_token_from_a_file(guarded: Secured, topic: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(unsigned("fred") + "\n")
    login = by_token(guarded, oauth_token_file=str(file))
    assert not shown(login, topic)
    guarded.allow("fred", "READ", "topic", topic)
    await_true(lambda: shown(login, topic) == {"READ", "DESCRIBE"}, "fred may read")
    file.write_text("no token at all")
    assert not shown(login, topic)


def test_the_content_of_the_file_is_never_logged(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token, until = None, 0.0
    file.write_text(unsigned("fred", 60.0))
    token, until = TokenFile(str(file))()
    assert token == file.read_text()
    assert until > 0
    for content in (b"hush", b"\xffhush", b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="oauth_token_file") as reported:
            TokenFile(str(file))()
        assert "hush" not in str(reported.value)
    file.unlink()
    with pytest.raises(ValueError, match="No such file"):
        TokenFile(str(file))()


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({}, "needs kafka.security.oauth_token_url"),
        ({"oauth_token_url": "https://id.example/token"}, "needs kafka.security.oauth_client_id"),
        ({"oauth_token_url": "https://id.example/token", "oauth_token_file": "/token"}, "not from both"),
        (
            {"oauth_token_url": "http://id.example/token", "oauth_client_id": "a", "oauth_client_secret": "b"},
            "sends the client's secret in clear text",
        ),
        ({"oauth_token_file": "/token", "protocol": "sasl_plaintext"}, "sends the token in clear text"),
        ({"oauth_token_file": "/token", "sasl_mechanism": "SCRAM-SHA-512"}, "belongs with"),
    ],
    ids=["nothing", "no-client", "both", "readable-secret", "readable-token", "other-mechanism"],
)
def test_settings_that_cannot_be_meant(given: dict[str, str], reported: str) -> None:
    wanted = {"protocol": "sasl_ssl", "sasl_mechanism": "OAUTHBEARER"} | given
    with pytest.raises(SettingsError, match=reported):
        load(env={f"{SECURITY}{key.upper()}": value for key, value in wanted.items()})
