"""The commands of the container files, as they are written, against a real broker: entry point, probes, preStop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cli.commands import Commands, wait_until

from statehold.dev.ports import free_ports
from statehold.ops.generate import scaffold

pytestmark = pytest.mark.kafka

NAME = "order-totals"


def instruction(dockerfile: str, name: str) -> list[str]:
    """Return the arguments of the last instruction in exec form."""
    found = re.findall(rf"^{name} .*?(\[.*\])$", dockerfile.replace("\\\n", ""), re.MULTILINE)
    arguments: list[str] = json.loads(found[-1])
    return arguments


def test_the_scaffolds_container_runs_answers_its_probes_and_drains(on_kafka: Commands, tmp_path: Path) -> None:
    home = tmp_path / "srv"
    scaffold.write(NAME, home)
    files = scaffold.files(NAME)
    stateful = yaml.safe_load(files["deploy/kubernetes/statefulset.yaml"])
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    settings = tmp_path / f"{NAME}.toml"
    settings.write_text(yaml.safe_load(files["deploy/kubernetes/configmap.yaml"])["data"][f"{NAME}.toml"])
    (tmp_path / "secrets").mkdir()
    port = free_ports(1)[0]
    places = {
        f"/etc/statehold/{NAME}.toml": str(settings),
        "/etc/statehold/secrets": str(tmp_path / "secrets"),
    }
    environment = {
        **on_kafka.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STATEHOLD_OPS__LISTEN": f"0.0.0.0:{port}",
        "STATEHOLD_SERVICE__INSTANCE": f"{NAME}-0",
        "STATEHOLD_SERVICE__NAMESPACE": f"{on_kafka.name}-",
    }

    def placed(arguments: list[str]) -> list[str]:
        return [places.get(each, each).replace(":8470", f":{port}") for each in arguments]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            arguments, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    created = run(
        "statehold", "topics", "create", "order_totals.app:service", "--start-at", "beginning", "--partitions", "2"
    )
    assert created.returncode == 0, created.stderr
    entry = placed(instruction(files["Dockerfile"], "ENTRYPOINT") + container["args"])
    assert entry[:2] == ["statehold", "run"]
    with (tmp_path / "log").open("w") as log:
        service = subprocess.Popen(entry, cwd=home, env=environment, stderr=log, stdout=log)
    try:

        def answers(path: str) -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")]
        for path in probes:
            wait_until(partial(answers, path), f"{path} answers 200")
        health = placed(instruction(files["Dockerfile"], "HEALTHCHECK"))
        assert run(*health).returncode == 0
        own = f"{on_kafka.name}-{NAME}"
        given = container["lifecycle"]["preStop"]["exec"]["command"]
        drain = [each.replace(f"--name {NAME}", f"--name {own}") for each in given]
        drained = run(*drain)
        assert drained.returncode == 0, drained.stderr
        assert service.wait(10) == 0
        assert run(*health).returncode != 0
    finally:
        service.kill()
        service.wait()
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "stopped"
    assert {"order-totals-0"} == {event["instance"] for event in events if "instance" in event}
