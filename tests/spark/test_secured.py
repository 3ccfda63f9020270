"""A broker that asks for TLS and a password: Spark's executors are given both, and others do not see them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import started
from tests.support.local_service import Local
from tests.support.stage import Stage

from statehold.dev import Cluster
from statehold.dev.ports import free_ports

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.spark]
#: a quote and a backslash have to pass through JAAS
PASSWORD = 'not"for\\everybody'  # noqa: S105
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def certificates(directory: Path) -> tuple[Path, Path]:
    """A key with its certificate for 127.0.0.1 in one file, and the certificate alone."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    key, cert, both = (directory / name for name in ("key.pem", "cert.pem", "both.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + cert.read_text())
    return both, cert


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A broker with a listener of its own for TLS and SASL/PLAIN, and the settings for it."""
    both, cert = certificates(tmp_path)
    ours, internal, controller, secure = free_ports(4)
    jaas = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    login = f'{MODULE} required username="broker" password="broker" user_broker="broker" user_ann="{jaas}";'
    open_ = f"CLIENT://127.0.0.1:{ours},BROKER://127.0.0.1:{internal},SECURE://127.0.0.1:{secure}"
    settings = {
        "listeners": f"{open_},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": open_,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": ("CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL"),
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": login.replace("\\", "\\\\"),
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(both),
    }
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "kafka__security__sasl_password").write_text(PASSWORD)
    with started(lambda: Cluster(port=ours, settings=settings)) as cluster:
        yield (
            cluster,
            {
                "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{secure}",
                "STATEHOLD_KAFKA__SECURITY__PROTOCOL": "sasl_ssl",
                "STATEHOLD_KAFKA__SECURITY__SASL_MECHANISM": "PLAIN",
                "STATEHOLD_KAFKA__SECURITY__SASL_USERNAME": "ann",
                "STATEHOLD_KAFKA__SECURITY__SSL_CA_LOCATION": str(cert),
                "secrets": str(secrets),
            },
        )


def command_lines() -> str:
    """Of all processes of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\x00", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(found)


def test_a_compaction_by_way_of_tls_and_a_password(secured: tuple[Cluster, dict[str, str]], tmp_path: Path) -> None:
    cluster, settings = secured
    secrets = settings.pop("secrets")
    (tmp_path / "stage").mkdir()
    stage = Stage(cluster.bootstrap_servers, tmp_path / "stage", 2).create_topics()
    with Local(stage, STATEHOLD_SNAPSHOT__ON_STOP="off"):
        stage.feed(500, keys=100)
        stage.await_all()
    command = [sys.executable, "-m", "statehold.ops.cli.entry", "compact", "--json", "--secrets-dir", secrets]
    command += ["--name", stage.names.service, "--input", stage.names.input]
    said, seen = tmp_path / "said", ""
    with said.open("wb") as out:
        job = subprocess.Popen(command, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT)
        while job.poll() is None:
            seen = max(seen, command_lines(), key=len)
            try:
                job.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
    text = said.read_text()
    assert job.returncode == 0, text[-4000:]
    outcomes = json.loads(text[text.index("\n[") + 1 if "\n[" in text else text.index("[{") :])
    assert [each["status"] for each in outcomes] == ["compacted", "compacted"]
    assert "org.apache.spark" in seen
    for part in ("for\\everybody", 'not"for'):
        assert part not in text
        assert part not in seen
    stage.verify()
    stage.close()
