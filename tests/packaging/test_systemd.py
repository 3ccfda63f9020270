"""The units under deploy/, and those that `statehold deploy systemd` writes, read by systemd itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statehold.common.exit_codes import MEANINGS
from statehold.errors import UsageError
from statehold.ops.generate import systemd_units

SHIPPED = (
    "systemd/statehold-compact@.service",
    "systemd/statehold-compact@.timer",
    "systemd/statehold@.service",
    "kafka/kafka.service",
)
#: what the shipped units call by its place in /opt
_PROGRAMS = re.compile(r"/opt/(statehold|kafka)/bin/[\w.-]+")
_CONFINES = re.compile(
    "(Protect|Private|Restrict|SystemCall|Capability|Ambient|NoNew|Lock|Keyring|RemoveIPC|UMask|MemoryDeny|LimitCORE)"
    "(?!.*(Secrets|ForceExit|PreventExit))"
)
with_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def a_plan(**more: Any) -> systemd_units.UnitPlan:
    given: dict[str, Any] = {
        "name": "clearing",
        "subject": "app:service",
        "config": Path("/etc/statehold/clearing.toml"),
        "instances": 3,
        "stop_timeout": 25.0,
        "directory": Path("/srv/clearing"),
        "program": Path(sys.executable).with_name("statehold"),
    }
    return systemd_units.UnitPlan(**{**given, **more})


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


@with_systemd
def test_systemd_has_nothing_to_say_against_the_shipped_units(root: Path, tmp_path: Path) -> None:
    paths = []
    for unit in SHIPPED:
        text = (root / "deploy" / unit).read_text(encoding="utf-8")
        paths.append(tmp_path / Path(unit).name)
        paths[-1].write_text(_PROGRAMS.sub("/bin/true", text))
    done = analyze("verify", *map(str, paths))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@with_systemd
def test_systemd_has_nothing_to_say_against_the_written_units(tmp_path: Path) -> None:
    for path, text in systemd_units.units(a_plan()).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    written = [str(path) for path in tmp_path.iterdir() if path.is_file()]
    done = analyze("verify", *written, str(tmp_path / "statehold-clearing@2.service"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@with_systemd
@pytest.mark.parametrize(("name", "score"), [("statehold@.service", "1.6"), ("statehold-compact@.service", "1.6")])
def test_the_page_says_the_exposure_that_systemd_computes(root: Path, tmp_path: Path, name: str, score: str) -> None:
    unit = tmp_path / name
    unit.write_text((root / "deploy" / "systemd" / name).read_text())
    done = analyze("security", "--offline=true", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a unit that is not loaded")
    computed = re.search(r"Overall exposure level for [^:]*: ([\d.]+)", done.stdout)
    assert computed is not None, done.stdout + done.stderr
    # Other releases weigh other things: what is promised is the class.
    assert float(computed[1]) < 2.0
    page = (root / "docs" / "how-to" / "operate" / "deploy.md").read_text(encoding="utf-8")
    assert f"`{name}` an exposure level of {score}" in page or f"`{name}` one of {score}" in page


def test_the_unit_of_a_compaction_is_confined_as_the_one_of_the_service() -> None:
    """But for what a JVM and a reader of its metrics need."""

    def confinement(name: str) -> set[str]:
        return {line for line in systemd_units.shipped(name).splitlines() if _CONFINES.match(line)}

    missing = confinement("statehold@.service") - confinement("statehold-compact@.service")
    assert missing == {"MemoryDenyWriteExecute=true", "UMask=0077"}


def test_the_unit_starts_again_what_the_page_says(root: Path) -> None:
    text = systemd_units.shipped("statehold@.service")
    never = [int(code) for code, (_, again) in MEANINGS.items() if not again and code != 0]
    assert f"\nRestartPreventExitStatus={' '.join(map(str, never))}\n" in text
    assert "\nRestart=on-failure\n" in text
    page = (root / "docs" / "how-to" / "operate" / "deploy.md").read_text(encoding="utf-8")
    assert f"except 0, {', '.join(map(str, never[:-1]))} and {never[-1]}." in page


def test_each_instance_has_its_name_its_port_and_its_share() -> None:
    made = systemd_units.units(a_plan())
    assert [path for path in made if path.endswith(".conf")] == [
        f"statehold-clearing@{number}.service.d/instance.conf" for number in (1, 2, 3)
    ]
    assert "STATEHOLD_OPS__LISTEN=127.0.0.1:8473\n" in made["statehold-clearing@3.service.d/instance.conf"]
    service = made["statehold-clearing@.service"]
    assert "\nMemoryMax=25%\n" in service
    assert "STATEHOLD_SERVICE__INSTANCE=%l-clearing-%i\n" in service
    wants = "statehold-clearing@1.service statehold-clearing@2.service statehold-clearing@3.service"
    assert f"\nWants={wants}\n" in made["statehold-clearing.target"]


@with_systemd
def test_a_unit_of_several_processes_reloads_one_after_the_other(tmp_path: Path) -> None:
    service = systemd_units.units(a_plan(instances=1, processes="auto"))["statehold-clearing@.service"]
    assert re.search(r"\nExecStart=.* --json --processes auto\nExecReload=/bin/kill -HUP \$MAINPID\n", service)
    assert "\nMemoryMax=75%\n" in service
    assert "ExecReload" not in systemd_units.units(a_plan())["statehold-clearing@.service"]
    (tmp_path / "statehold-clearing@1.service").write_text(service)
    done = analyze("verify", str(tmp_path / "statehold-clearing@1.service"))
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("processes", ["0", "-1", "4 --pin", "many"])
def test_an_impossible_number_of_processes_is_rejected(processes: str) -> None:
    with pytest.raises(UsageError, match="write a number, or auto"):
        systemd_units.units(a_plan(processes=processes))


def test_settings_and_options_reach_the_unit() -> None:
    more = {"stop_timeout": 100.5, "memory": "4G", "user": "kate", "secrets": Path("/etc/s"), "ops_port": 0}
    made = systemd_units.units(a_plan(**more, compaction=False))
    assert set(made) == {"statehold-clearing@.service", "statehold-clearing.target"}
    service = made["statehold-clearing@.service"]
    for line in ("TimeoutStopSec=116s", "MemoryMax=4G", "User=kate", "Group=kate", "WorkingDirectory=/srv/clearing"):
        assert f"\n{line}\n" in service
    assert (
        "run app:service --profile production --config /etc/statehold/clearing.toml --secrets-dir /etc/s --json\n"
        in (service)
    )


@pytest.mark.parametrize(("systemd", "steps"), [(0, False), (252, False), (253, False), (254, True), (257, True)])
def test_growing_delays_only_where_systemd_knows_them(systemd: int, steps: bool) -> None:
    service = systemd_units.units(a_plan(systemd=systemd))["statehold-clearing@.service"]
    assert ("\nRestartSteps=5\nRestartMaxDelaySec=60s\n" in service) is steps


def test_the_version_is_read_from_what_systemctl_prints() -> None:
    assert systemd_units.version_of("systemd 252 (252.38-1~deb12u1)\n+PAM") == 252
    assert systemd_units.version_of("systemd 257.9 (257.9-1)") == 257
    assert systemd_units.version_of("") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"instances": 0},
        {"name": "a b"},
        {"memory": "much"},
        {"ops_port": 65_535},
        {"config": Path("/etc/with space.toml")},
        {"directory": Path("/srv/100%i")},
    ],
    ids=str,
)
def test_settings_that_no_unit_can_express_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        systemd_units.units(a_plan(**wrong))


@pytest.mark.slow
def test_the_command_writes_replaces_and_shows(root: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("statehold")), "deploy", "systemd", "examples.clearing.app:service"]
    command += ["--config", "examples/clearing/clearing.toml", "--instances", "2", "--output", str(tmp_path / "u")]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=root, capture_output=True, text=True, check=False)

    shown = run("--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert not (tmp_path / "u").exists()
    reported = json.loads(run("--json").stdout)
    assert reported["written"]
    assert {Path(each["path"]).read_text() for each in reported["units"]} == {
        each["content"] for each in reported["units"]
    }
    assert all(f"# {each['path']}\n{each['content']}" in shown.stdout for each in reported["units"])
    assert run("--instances", "3").returncode == 0
    assert "@3.service" in (tmp_path / "u" / "statehold-clearing.target").read_text()
    (tmp_path / "file").touch()
    rejected = run("--output", str(tmp_path / "file" / "below"))
    assert rejected.returncode == 1
    assert rejected.stderr.startswith("statehold: ")
