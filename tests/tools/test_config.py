"""`statehold config show | check` and `statehold new`: no broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statehold.config.effective import effective
from statehold.config.settings import Settings
from statehold.ops.cli.main import app
from statehold.ops.generate import scaffold


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "app.toml"
    path.write_text(
        '[commit]\ninterval = "50ms"\n\n[kafka.security]\nprotocol = "sasl_ssl"\nsasl_mechanism = "SCRAM-SHA-512"\n'
        'sasl_username = "ann"\nsasl_password = "from-the-file"\n\n[kafka.extra]\n"fetch.wait.max.ms" = 50\n'
    )
    return path


def test_each_setting_is_shown_with_its_origin(file: Path, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "kafka.security.sasl_password").write_text("from-the-directory\n")
    env = {"STATEHOLD_LOG__LEVEL": "debug", "STATEHOLD_COMMIT__INTERVAL": "20ms"}

    settings, reported = effective(file, {"flow.batch": "500"}, env, secrets, profile="production")

    by_key = {each.key: each for each in reported}
    assert by_key["flow.batch"].origin == "command line"
    assert (by_key["commit.interval"].value, by_key["commit.interval"].default) == ("20ms", "100ms")
    assert by_key["commit.interval"].origin == "environment variable STATEHOLD_COMMIT__INTERVAL"
    assert by_key["kafka.security.sasl_password"].origin == f"file {secrets / 'kafka.security.sasl_password'}"
    assert by_key["kafka.security.sasl_username"].origin == f"{file}:7"
    assert by_key["kafka.extra.fetch.wait.max.ms"].value == "'50'"
    assert by_key["doctor.at_start"].origin.rpartition(":")[0].endswith("production.toml")
    assert by_key["commit.timeout"] == ("commit.timeout", "20s", "default", "20s")
    assert settings.kafka.security.sasl_password.reveal() == "from-the-directory"


def test_no_secret_shows(file: Path) -> None:
    for words in (["show"], ["show", "--json"], ["show", "--changed"], ["check", "--json"]):
        done = CliRunner().invoke(app, ["config", *words, "-c", str(file)], env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert "from-the-file" not in done.output
    shown = json.loads(CliRunner().invoke(app, ["config", "show", "--json", "-c", str(file)]).output)
    assert {"key": "kafka.security.sasl_password", "value": "<redacted>"}.items() <= next(
        each for each in shown if each["key"].endswith("sasl_password")
    ).items()


def test_every_setting_is_there() -> None:
    settings, reported = effective(env={})

    assert settings == Settings()
    assert len(reported) == len({each.key for each in reported}) > 60
    assert not any(each.changed for each in reported)


@pytest.mark.slow
def test_a_wrong_setting_is_one_line_with_its_origin(file: Path) -> None:
    file.write_text("[commit]\nintervall = 1\n")
    words = [sys.executable, "-m", "statehold.ops.cli.entry", "config", "check", "-c", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"statehold: setting commit.intervall ({file}:2): unknown setting; did you mean commit.interval?\n"
    )


# A new service


@pytest.mark.slow
def test_a_new_service_is_whole_and_its_test_passes_at_once(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["new", "order-totals", "--to", str(tmp_path / "made"), "--json"])
    assert done.exit_code == 0, done.output
    made = tmp_path / "made"
    assert {Path(each).name for each in json.loads(done.output)["files"]} >= {
        "app.py", "test_app.py", "order-totals.toml", "order-totals.service", "Dockerfile", "README.md",
    }  # fmt: skip

    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "STATEHOLD"))}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=made,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout
    checked = CliRunner().invoke(app, ["config", "check", "-c", str(made / "order-totals.toml")])
    assert checked.exit_code == 0, checked.output
    assert tomllib.loads((made / "order-totals.toml").read_text())["doctor"]["at_start"] == "warn"


def test_a_new_service_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")

    done = CliRunner().invoke(app, ["new", "orders", "--to", str(tmp_path)])

    assert done.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["Orders", "1st", "a_b", "a--b", "../up", ""])
def test_a_name_that_cannot_be_one(name: str, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["new", name, "--to", str(tmp_path / "x")]).exit_code != 0
    assert not (tmp_path / "x").exists()


def test_the_unit_and_the_image_run_what_was_made() -> None:
    made = scaffold.files("order-totals")

    assert "run order_totals.app:service " in made["deploy/order-totals.service"]
    assert "RestartPreventExitStatus=2 5" in made["deploy/order-totals.service"]
    assert '"order_totals.app:service"' in made["Dockerfile"]
    assert not any("{name}" in text or "{module}" in text for text in made.values())
