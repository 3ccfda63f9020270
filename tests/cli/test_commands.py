"""Errors of the command line: one line that says what to do next. No broker needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.commands import Commands
from typer.testing import CliRunner

from statehold.errors import StartError, UsageError
from statehold.ops.cli.common.target import find_service, load_settings
from statehold.ops.cli.main import app

LOOKING = [*(("snapshot", each) for each in ("list", "show", "verify", "diff", "history")), ("cat",), ("prove",)]


def help_of(*command: str) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
    assert done.exit_code == 0
    return done.output


def test_the_list_of_commands_says_what_each_does() -> None:
    assert {"run", "topics", "snapshot", "status", "retry", "dev"} <= set(help_of().split())


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_the_list_of_commands_imports_none_of_them(word: str) -> None:
    code = (
        f"import sys, typer; from statehold.ops.cli.main import app\ntry: app([{word!r}])\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "statehold.ops.cli.main" in imported
    assert not {"statehold.ops.cli.service.run", "statehold.service", "confluent_kafka", "structlog"} & imported


# Settings


@pytest.mark.slow
def test_an_unknown_setting_is_named_with_its_origin_and_the_nearest(statehold: Commands) -> None:
    (statehold.directory / "app.toml").write_text("[commit]\nintervall = 0.2\n")

    done = statehold.run("run", "app:service", "--config", "app.toml")

    assert done.returncode == 5
    assert done.stderr == (
        "statehold: SettingsError: setting commit.intervall (app.toml:2): unknown setting; "
        "did you mean commit.interval?\n"
    )


def test_the_command_line_comes_before_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, secrets = tmp_path / "a.toml", tmp_path / "secrets"
    file.write_text('[log]\nlevel = "error"\nformat = "json"\n[commit]\ninterval = 0.3\n')
    secrets.mkdir()
    (secrets / "log__format").write_text("console")
    monkeypatch.setenv("STATEHOLD_LOG__LEVEL", "warning")

    settings = load_settings(file, ["commit.interval=0.5"], secrets, None)

    assert (settings.commit.interval, settings.log.level, settings.log.format) == (0.5, "warning", "console")


def test_a_set_without_a_value_shows_how(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--set log\.level: write --set KEY=VALUE, such as --set log\.level=debug"):
        load_settings(None, ["log.level"], None, None)


# The service


@pytest.mark.parametrize(
    ("target", "reported"),
    [
        ("absent:service", r"there is no module 'absent' in .*; run the command in the directory that holds absent"),
        ("app", r"'app': write module:service, such as order_totals\.app:service"),
        ("app.py:service", r"'app\.py' is a path; write the module's name: app:service"),
        ("src/app.py:service", r"write the module's name: src\.app:service"),
        ("plain:nothing", r"module plain has no 'nothing'; write: service = Service"),
        ("plain:number", r"plain:number is a int, not a Service"),
        ("served:servce", r"module served has no 'servce'; its services: service"),
    ],
)
def test_a_wrong_target_is_explained(
    target: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text("number = 1\n")
    (tmp_path / "served.py").write_text(
        "from statehold import Handler, Service\nservice = Service('s', input='i', handler=Handler)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(UsageError, match=reported):
        find_service(target)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "x = 1\ny = x / 0\n",
            r"broken_\w+ cannot be imported: .*broken_\w+\.py:2: ZeroDivisionError: division by zero",
        ),
        (
            "import nowhere\n",
            r"broken_\w+ cannot be imported: .*broken_\w+\.py:1: No module named 'nowhere'\. Install what",
        ),
        ("def f(:\n", r"broken_\w+ cannot be imported: SyntaxError: .*broken_\w+\.py, line 1"),
    ],
)
def test_a_module_that_fails_on_import_names_the_line(
    text: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(StartError, match=reported):
        find_service(f"{name}:service")


@pytest.mark.slow
def test_a_wrong_module_is_one_line_of_the_log(statehold: Commands) -> None:
    done = statehold.run("run", "absent:service")

    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    reported = json.loads(line)
    assert (reported["event"], reported["error"], reported["exit_code"]) == ("stopped", "UsageError", 5)
    assert "there is no module 'absent'" in reported["cause"]


@pytest.mark.slow
def test_for_people_it_is_a_sentence(statehold: Commands) -> None:
    done = statehold.run("run", "absent:service", "--set", "log.format=console")

    assert done.returncode == 5
    assert done.stderr.startswith("statehold: UsageError: there is no module 'absent' in ")
    assert done.stderr.count("\n") == 1


# Topics, status, retry


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (("topics", "check"), 2, "statehold: name the service: module:service, "),
        (("topics", "check", "--name", "x"), 2, "statehold: name the service: module:service, "),
        (("topics", "check", "app:service", "--name", "x"), 2, "statehold: app:service declares its names itself; "),
        (("retry", "3", "--name", "absent"), 1, "statehold: no process of service 'absent' runs on this machine"),
        (("retry", "three", "--name", "nobody"), 2, "statehold: 'three' is no partition: give a number, or all"),
        (("state", "migrate", "app:service", "--why", "x", "--patch", "no/p"), 1, "statehold: no/p: No such file or "),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_one_line_says_what_is_wrong(statehold: Commands, arguments: tuple[str, ...], code: int, reported: str) -> None:
    done = statehold.run(*arguments)

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(reported)
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("check",), id="check"),
        pytest.param(("create", "--start-at", "beginning"), id="create", marks=pytest.mark.long),  # 10 s each
    ],
)
def test_topics_without_a_broker_say_which_address_and_what_to_check(
    statehold: Commands, command: tuple[str, ...]
) -> None:
    statehold.environment["STATEHOLD_KAFKA__BOOTSTRAP_SERVERS"] = "127.0.0.1:9"

    done = statehold.run("topics", *command, "--name", "x", "--input", "y")

    assert (done.returncode, done.stdout) == (1, "")
    *waits, error = done.stderr.splitlines()
    assert error.startswith("statehold: 127.0.0.1:9: connect: the brokers do not answer: Connection refused. ")
    assert "on this machine run `statehold dev status`" in error
    assert waits
    assert all(
        re.match(r"statehold: 127\.0\.0\.1:9: waits for Kafka for \d+ s: Connection refused$", each) for each in waits
    )


@pytest.mark.slow
def test_status_without_a_process_has_a_code_of_its_own(statehold: Commands) -> None:
    done = statehold.run("status", "--name", "nobody", "--json")

    assert (done.returncode, json.loads(done.stdout)) == (3, [])
    assert "Check: the host, the user" in done.stderr


@pytest.mark.parametrize("name", ["statehold.tick", "statehold.answer"])
def test_what_only_a_worker_makes_cannot_be_sent(statehold: Commands, name: str) -> None:
    done = statehold.run("command", name, "app:service")
    assert done.returncode == 2
    assert f"{name!r} is an entry that only a worker makes" in done.stderr


def test_calls_of_a_service_that_makes_none(statehold: Commands) -> None:
    done = statehold.run("calls", "list", "app:service")
    assert done.returncode == 1
    assert "the handler Echo declares no Call" in done.stderr
