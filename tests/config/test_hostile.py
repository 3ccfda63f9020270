"""Configuration that is broken, hostile or careless: one line says what is wrong, and no secret is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehold.config import SettingsError, load


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        bytes(range(256)) * 100,
        b"[kafka]\n" + b"a." * 2000 + b"b = 1",
        b"x = " + b"[" * 5000 + b"]" * 5000,
        b"[kafka]\nbootstrap_servers = { a = { b = 1 } }",
        b"[[kafka]]\n",
        b"kafka = 3\n",
    ],
    ids=["no-text", "bytes", "deep-key", "deep-array", "table", "array-of-tables", "number"],
)
def test_a_broken_file_is_one_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as reported:
        load(file, env={})
    assert "Traceback" not in str(reported.value)
    assert len(str(reported.value)) < 20_000


@pytest.mark.parametrize(
    "key",
    ["kafka.security.sasl_password", "kafka.security.oauth_client_secret", "ops.token", "kafka.extra.ssl.key.pem"],
)
def test_a_secret_on_the_command_line_is_rejected_and_not_repeated(key: str) -> None:
    with pytest.raises(SettingsError, match="every user of the machine can read command lines") as reported:
        load(overrides={key: "hunter2-and-some-more"}, env={})
    assert "hunter2" not in str(reported.value)
