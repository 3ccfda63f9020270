"""Options that mean the same in every command, and exit codes as documented."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from script.generate import cli_page as reference
from tests.cli.commands import Commands
from tests.support.terminal import on_terminal
from typer.testing import CliRunner

from statehold.ops.cli.common.yaml import yaml_lines
from statehold.ops.cli.main import app

pytestmark = pytest.mark.slow

LEAVES = dict(reference.leaves())
BY_NAME = ("--name", "x", "--input", "y")
LOGIN = {
    "STATEHOLD_KAFKA__SECURITY__PROTOCOL": "sasl_ssl",
    "STATEHOLD_KAFKA__SECURITY__SASL_MECHANISM": "SCRAM-SHA-512",
    "STATEHOLD_KAFKA__SECURITY__SASL_USERNAME": "ann",
}


def options(command: Any) -> dict[str, Any]:
    return {name: param for param in command.params for name in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_option_means_the_same_in_every_command(words: tuple[str, ...]) -> None:
    found = options(LEAVES[words])
    meanings = {
        "--service": "MODULE:SERVICE",
        "--name": "NAME",
        "--input": "TOPIC[,TOPIC...]",
        "-o": "table|wide|json|yaml",
        "-b": "HOST:PORT,...",
        "-c": "FILE",
        "-s": "KEY=VALUE",
    }
    for name, meaning in meanings.items():
        if name in found and words != ("deploy", "systemd"):  # where --name is that of the units
            assert found[name].metavar == meaning, name
    assert "-o" in found or words == ("run",), "its lines are a log"
    assert ("-b" in found) == ("--set" in found)
    takes_service = any(each.name == "target" for each in LEAVES[words].params)
    assert ("--service" in found) == takes_service
    assert "--name" not in found or takes_service


#: what JSON can hold
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values)
def test_yaml_holds_the_same_value_as_json(value: Any) -> None:
    value = json.loads(json.dumps(value))
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value


@pytest.mark.parametrize(
    "words", ["true", "No", "1e5", "a: b", "- x", "", " x", "x ", "#", "null", "~", "x #y", "2026-11-21"]
)
def test_text_stays_text_in_yaml(words: str) -> None:
    assert yaml.safe_load("\n".join(yaml_lines({"a": [words, {words: words}]}))) == {"a": [words, {words: words}]}


def test_each_form_of_the_output(statehold: Commands) -> None:
    words = ("config", "show", "--changed", "-b", "broker-1.example.org:9092,broker-2.example.org:9092")
    found = json.loads(statehold.run(*words, "-o", "json").stdout)

    assert [(each["key"], each["origin"]) for each in found] == [("kafka.bootstrap_servers", "command line")]
    assert json.loads(statehold.run(*words, "--json").stdout) == found
    assert yaml.safe_load(statehold.run(*words, "-o", "yaml").stdout) == found
    assert statehold.run(*words, "-o", "wide").stdout == statehold.run(*words).stdout
    narrow = on_terminal(statehold.command(*words), 60, statehold.environment, statehold.directory)
    wide = on_terminal(statehold.command(*words, "-o", "wide"), 60, statehold.environment, statehold.directory)
    assert found[0]["value"] in wide
    assert found[0]["value"] not in narrow


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "acl", "app:service"),
        ("topics", "acl", "--service", "app:service"),
        ("topics", "acl", "--name", "{name}", "--input", "{name}.in", "--output", "{name}.out"),
        ("topics", "acl", "--service", "{name}", "--input", "{name}.in", "--output", "{name}.out"),
    ],
    ids=" ".join,
)
def test_each_way_names_the_service(statehold: Commands, words: tuple[str, ...]) -> None:
    given = [each.format(name=statehold.name) for each in words]
    done = statehold.run(*given, "-b", "broker:1")

    assert done.returncode == 0, done.stderr
    assert "--bootstrap-server broker:1 --command-config admin.properties --add" in done.stdout
    assert f"--topic {statehold.name}.out" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--name", "{name}"),
        ("status", "--service", "{name}"),
        ("retry", "all", "app:service"),
        ("retry", "all", "--service", "app:service"),
        ("retry", "all", "--service", "{name}"),
        ("drain", "web1", "app:service"),
        ("drain", "web1", "--name", "{name}"),
    ],
    ids=" ".join,
)
def test_each_way_names_the_service_of_this_machine(statehold: Commands, words: tuple[str, ...]) -> None:
    done = statehold.run(*(each.format(name=statehold.name) for each in words))

    assert done.returncode in (1, 3)
    assert statehold.name in done.stderr
    assert "--help" not in done.stderr


def test_a_command_that_needs_the_code_takes_it_by_either_way(statehold: Commands) -> None:
    found = statehold.run("schema", "--service", "app:service")

    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == statehold.run("schema", "app:service").stdout
    assert "there is no module 'nope'" in statehold.run("run", "--service", "nope:service").stderr
    missing = statehold.run("repair", "rebase", "--records", "replay", "--why", "ticket 9")
    assert missing.stderr == "statehold: name the service: MODULE:SERVICE, such as order_totals.app:service\n"


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("schema", "--service", "clearing"),
        ("sink", "show", "app:service", "--service", "app:service"),
        ("prove", *BY_NAME),
        ("lag",),
        ("lag", "app:service", "--name", "x"),
        ("lag", "app:service", "--service", "app:service"),
        ("lag", *BY_NAME, "--partitions", "a"),
        ("lag", *BY_NAME, "--partitions", ""),
        ("lag", *BY_NAME, "--partitions", "5-3"),
        ("lag", *BY_NAME, "--partitions", "0-99999999999"),
        ("lag", *BY_NAME, "-b", ""),
        ("cat", "y", "-p", "5-3"),
        ("cat", "y", "--offset", "newest"),
        ("lag", *BY_NAME, "--set", "a"),
        ("lag", *BY_NAME, "-o", "xml"),
        ("dlq", "replay", *BY_NAME),
        ("retry", "three", "--name", "x"),
        ("doctor", "--only", "no-such-check"),
        ("txn", "abort", *BY_NAME),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_has_exit_code_2(words: tuple[str, ...], statehold: Commands) -> None:
    done = statehold.run(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("dlq", "add", "0", "5", *BY_NAME, "--why", ""),
        ("dlq", "discard", "--all", *BY_NAME, "--why", ""),
        ("repair", "accept-gap", "app:service", "--why", ""),
        ("state", "migrate", "app:service", "--why", " "),
    ],
    ids=" ".join,
)
def test_a_reason_is_not_blank(words: tuple[str, ...], statehold: Commands) -> None:
    done = statehold.run(*words)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'statehold: --why is empty: write the reason, such as --why "ticket 17"\n'


@pytest.mark.parametrize(("partition", "offset"), [("0", "-57"), ("-57", "0")])
def test_a_negative_offset_is_no_option(partition: str, offset: str, statehold: Commands) -> None:
    done = statehold.run("dlq", "add", partition, offset, *BY_NAME, "--why", "x")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "statehold: -57: a partition or an offset must not be negative\n"
    assert "No such option: --no" in statehold.run("dlq", "add", "0", "5", "--no").stderr


def test_rights_are_printed_without_a_password(statehold: Commands) -> None:
    statehold.environment |= LOGIN
    done = statehold.run("topics", "acl", *BY_NAME, "--role", "service")

    assert (done.returncode, done.stderr) == (0, "")
    assert "--allow-principal User:ann --operation Read --topic y" in done.stdout
    assert statehold.run("config", "check").returncode == 1


@pytest.mark.parametrize(
    "words", [("topics", "acl", *BY_NAME), ("config", "show"), ("config", "show", "--json")], ids=" ".join
)
def test_a_reader_that_ends_changes_no_exit_code(statehold: Commands, words: tuple[str, ...]) -> None:
    with subprocess.Popen(
        statehold.command(*words),
        cwd=statehold.directory,
        env=statehold.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()  # as `| head` does
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_the_forms_are_in_the_help() -> None:
    done = CliRunner().invoke(app, ["lag", "--help"], env={"COLUMNS": "160", "NO_COLOR": "1"})
    assert all(each in done.output for each in ("table|wide|json|yaml", "--bootstrap-server", "--service", "--json"))
