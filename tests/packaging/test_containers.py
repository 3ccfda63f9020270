"""The container files that `statehold new` writes: linted, valid for Kubernetes, and consistent with each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from statehold.config import load
from statehold.ops.generate import scaffold

NAME = "order-totals"
FILES = scaffold.files(NAME)
DOCKERFILE = FILES["Dockerfile"]
MANIFESTS: dict[str, Any] = {
    Path(path).stem: yaml.safe_load(text) for path, text in FILES.items() if path.startswith("deploy/kubernetes/")
}
#: the oldest and the newest Kubernetes that the manifests are checked against
VERSIONS = ("1.31", "1.37")
KNOWN_TO_KUBERNETES = sorted(set(MANIFESTS) - {"servicemonitor"})


def lint(dockerfile: str) -> list[str]:
    """Return hadolint's findings."""
    program = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [program, "--format", "json", "-"], input=dockerfile, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return [f"{each['line']}: {each['code']} {each['message']}" for each in json.loads(done.stdout)]


def instructions(stage: str) -> dict[str, str]:
    """Return the last instruction of each kind in a stage and those below it."""
    text = re.sub(r"\\\n\s*", "", "\n".join(line for line in DOCKERFILE.split("\n") if not line.startswith("#")))
    stages = {
        found[2]: (found[1], found[3]) for found in re.finditer(r"FROM (\S+) AS (\S+)\n(.*?)(?=\nFROM |\Z)", text, re.S)
    }
    parent, body = stages[stage]
    found = instructions(parent) if parent in stages else {}
    found |= dict(line.split(" ", 1) for line in body.split("\n") if line.split(" ", 1)[0].isupper())
    return found


def pod(name: str) -> Any:
    spec = MANIFESTS[name]["spec"]
    return (spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec)["template"]["spec"]


def test_hadolint_finds_nothing() -> None:
    assert lint(DOCKERFILE) == []


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("-slim-bookworm AS base", "-slim-bookworm AS base\nRUN cd /srv", "DL3003"),
        ("--no-install-recommends ", "", "DL3015"),
        ("STOPSIGNAL SIGTERM", "STOPSIGNL SIGTERM", "unexpected"),
        ("python:${PYTHON}-slim-bookworm AS base", "python AS base", "DL3006"),
    ],
)
def test_a_planted_mistake_in_the_dockerfile_is_found(before: str, after: str, code: str) -> None:
    assert before in DOCKERFILE
    assert any(code in finding for finding in lint(DOCKERFILE.replace(before, after)))


@pytest.mark.parametrize("stage", ["service", "compact"])
def test_an_image_runs_statehold_as_a_user_without_rights(stage: str) -> None:
    found = instructions(stage)
    user = int(found["USER"].split(":")[0])
    assert user == pod("statefulset" if stage == "service" else "compaction")["securityContext"]["runAsUser"] > 0
    entry = json.loads(found["ENTRYPOINT"])
    assert entry[:3] == ["statehold", "run" if stage == "service" else "compact", "order_totals.app:service"]
    assert entry[entry.index("--config") + 1] == f"/etc/statehold/{NAME}.toml"
    assert DOCKERFILE.rindex("AS service") > DOCKERFILE.rindex("AS compact"), "the last stage is the default"


def test_the_health_check_asks_the_ops_server_whether_it_is_live() -> None:
    found = instructions("service")
    port = found["EXPOSE"]
    assert f"STATEHOLD_OPS__LISTEN=0.0.0.0:{port}" in DOCKERFILE
    assert f"http://127.0.0.1:{port}/live" in found["HEALTHCHECK"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", KNOWN_TO_KUBERNETES)
def test_a_manifest_is_valid(name: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[name], version, strict=True)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("statefulset", "livenessProbe", "livenesProbe"),
        ("statefulset", "terminationGracePeriodSeconds: 75", "terminationGracePeriodSeconds: 75s"),
        ("statefulset", "runAsNonRoot", "runAsNonroot"),
        ("compaction", "concurrencyPolicy", "concurencyPolicy"),
        ("poddisruptionbudget", "maxUnavailable", "maxUnavailble"),
    ],
)
def test_a_planted_misspelling_is_found(name: str, right: str, wrong: str) -> None:
    text = FILES[f"deploy/kubernetes/{name}.yaml"]
    assert right in text
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(yaml.safe_load(text.replace(right, wrong)), VERSIONS[-1], strict=True)


def test_the_manifests_name_each_other() -> None:
    stateful, service = MANIFESTS["statefulset"], MANIFESTS["service"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    for name in ("statefulset", "poddisruptionbudget", "servicemonitor"):
        assert MANIFESTS[name]["spec"]["selector"]["matchLabels"].items() <= labels.items(), name
    assert service["spec"]["selector"].items() <= labels.items()
    assert (
        MANIFESTS["servicemonitor"]["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == NAME
    compacting = MANIFESTS["compaction"]["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= compacting.items(), "a compaction has no ops server"
    (container,) = pod("statefulset")["containers"]
    (port,) = container["ports"]
    assert str(port["containerPort"]) == instructions("service")["EXPOSE"]
    (served,) = service["spec"]["ports"]
    assert (served["port"], served["targetPort"]) == (port["containerPort"], port["name"])
    (endpoint,) = MANIFESTS["servicemonitor"]["spec"]["endpoints"]
    assert endpoint["port"] == served["name"]
    assert set(endpoint) <= {"port", "path", "interval", "scrapeTimeout", "scheme"}
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/startup",
        "liveness": "/live",
        "readiness": "/ready",
    }
    assert {probe["port"] for probe in probes.values()} == {port["name"]}


@pytest.mark.parametrize("name", ["statefulset", "compaction"])
def test_a_pod_has_no_rights_it_does_not_need(name: str) -> None:
    spec = pod(name)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= set(container["resources"])
        assert "memory" in container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}


def test_the_settings_make_a_static_member_of_the_pods_name_that_has_time_to_stop(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(MANIFESTS["configmap"]["data"][f"{NAME}.toml"], encoding="utf-8")
    (container,) = pod("statefulset")["containers"]
    variable, state = container["env"]
    assert state["value"] in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    settings = load(file, env={variable["name"]: f"{NAME}-0", state["name"]: state["value"]}, profile="production")
    assert (settings.group.membership, settings.service.identity) == ("static", f"{NAME}-0")
    assert settings.service.mode == "production"
    drain = container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert f'drain "${variable["name"]}" --name {NAME} ' in drain
    waits = int(drain.rpartition("--wait ")[2])
    assert settings.service.stop_timeout < waits
    assert waits + settings.service.stop_timeout < pod("statefulset")["terminationGracePeriodSeconds"]


def test_the_image_gets_only_what_it_needs() -> None:
    ignored = FILES[".dockerignore"].split()
    assert ignored[0] == "*"
    copied = re.findall(r"^COPY (?!--from)(\S+)", DOCKERFILE, re.MULTILINE)
    patterns = [line[1:] for line in ignored if line.startswith("!")]
    assert all(any(Path(each).match(pattern) for pattern in patterns) for each in copied)
    assert set(copied) <= {*FILES, "order_totals"}
    assert tomllib.loads(FILES[f"{NAME}.toml"])
