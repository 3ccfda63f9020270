"""Spark Connect: a client in an environment of its own, without settings, and a server with those of the service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.changes import counted, stored_changes
from tests.support.environments import build_wheel, find_uv, run
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import fold, read_all

from statehold.dev.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def server(staged: Stage, tmp_path: Path) -> Iterator[str]:
    """The URL of a server whose Python has statehold, the service's module and its settings."""
    import pyspark

    port, log = free_ports(1)[0], tmp_path / "server.log"
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    for name, value in {"binding.address": "127.0.0.1", "binding.port": str(port)}.items():
        command += ["--conf", f"spark.connect.grpc.{name}={value}"]
    command += ["--conf", "spark.ui.enabled=false", "spark-internal"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": staged.servers,
    }
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=file, stderr=file)

    def started() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        return "Spark Connect server started" in log.read_text(errors="replace")

    try:
        await_true(started, "the server", 300)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture
def client(tmp_path: Path) -> str:
    """The Python of a new environment with what the documentation installs."""
    import pyspark

    uv, python = find_uv(), tmp_path / "client" / "bin" / "python"
    wheel = build_wheel(ROOT, sys.executable, tmp_path)
    assert run(uv, "venv", "--quiet", "--python", sys.executable, str(python.parents[1])).returncode == 0
    wanted = [f"statehold[spark] @ {wheel.as_uri()}", f"pyspark[connect]=={pyspark.__version__}"]
    done = run(uv, "pip", "install", "--quiet", "--python", str(python), *wanted)
    if done.returncode != 0 and os.environ.get("CI") != "true":
        pytest.skip(f"what Spark Connect needs cannot be downloaded: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return str(python)


def test_a_client_reads_tables_views_and_changes(staged: Stage, server: str, client: str, tmp_path: Path) -> None:
    with Local(staged, STATEHOLD_COMMIT__MAX_RECORDS="50"):
        staged.feed(300, keys=50)
        staged.await_all()
    service = f"tests.support.apps.named:{staged.names.service}/{staged.names.input}/{staged.output}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "STATEHOLD"))}

    done = subprocess.run(
        [client, "-m", "tests.support.apps.connecting", service, server, str(tmp_path / "lake")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )

    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect.")
    assert not found["jvm"]
    totals = fold(read_all(staged.servers, staged.names.input)).totals
    assert {(row["partition"], row["key"]): (row["count"], row["sum"]) for row in found["rows"]} == {
        (partition, key): (total.count, total.sum) for partition, each in totals.items() for key, total in each.items()
    }
    assert found["sql"] == [[len(found["rows"]), sum(row["sum"] for row in found["rows"])]]
    assert "there is no table 'total' in" in found["unknown"]
    assert found["unknown"].startswith("AnalysisException")
    assert counted(found["changes"]) == stored_changes(staged, service)
