"""`statehold explain`: it finds what a person types, and each command that it prints can be run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Commands
from tests.support.terminal import on_terminal
from typer.main import get_command
from typer.testing import CliRunner

from statehold.ops.cli.common.output import choose
from statehold.ops.cli.lazy_commands import loaded
from statehold.ops.cli.main import app
from statehold.ops.explain import entries as source
from statehold.ops.explain.entries import Entry, entries
from statehold.ops.explain.lookup import find, nearest
from statehold.ops.explain.text import blocks, commands

COMMANDS = sorted({each for entry in entries().values() for part in (entry.look, entry.do) for each in commands(part)})


def run(*arguments: str, code: int = 0) -> str:
    try:
        done = CliRunner().invoke(app, ["explain", *arguments], env={"COLUMNS": "80"})
    finally:
        choose(None)
    assert done.exit_code == code, done.output
    return done.output


def parse(command: Any, words: list[str]) -> None:
    """Parse the words as the command line does, without converting the values.

    :raises click.UsageError: an option that the command does not have.
    :raises AssertionError: a word is missing, or one is left.
    """
    given, left, _ = command.make_parser(command.context_class(command)).parse_args(list(words))
    missing = [each.name for each in command.params if each.required and given.get(each.name) in (None, ())]
    assert not missing, f"{missing} is missing"
    if hasattr(command, "commands") and not given.get("version"):
        assert left, f"{command.name} needs a command"
        assert left[0] in command.commands, left[0]
        parse(loaded(command.commands[left[0]]), left[1:])
    else:
        assert not left, f"{left} is left"


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("statehold ")])
def test_a_command_is_one_of_the_command_line(command: str) -> None:
    words = shlex.split(command)[1:]
    parse(get_command(app), words)
    if words[0] == "explain" and words[1:]:
        assert find(" ".join(words[1:])), "it explains something"


@pytest.mark.parametrize(
    "command",
    [
        "frobnicate",
        "txn",
        "retry --name NAME",
        "repair rebase MODULE:SERVICE --records replay",
        "status --nam NAME",
        "lag MODULE:SERVICE again",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # click's own errors and those above
        parse(get_command(app), shlex.split(command))


def test_other_commands_are_known_programs() -> None:
    programs = {shlex.split(each)[0] for each in COMMANDS}
    kafka = {"kafka-configs.sh", "kafka-consumer-groups.sh", "kafka-topics.sh"}
    machine = {"systemctl", "journalctl", "kill", "ls", "df", "curl", "java", "pip", "dmesg"}
    assert programs == {"statehold"} | kafka | machine


@pytest.mark.parametrize("name", ["RetentionGap", "retentiongap", "RETENTION_GAP", "retention gap"])
def test_a_name_is_found_in_any_case(name: str) -> None:
    assert [each.name for each in find(name)] == ["RetentionGap"]


@pytest.mark.parametrize("name", ["UnreadableKey", "unreadable key"])
def test_the_cause_in_an_errors_text_is_found(name: str) -> None:
    assert [each.name for each in find(name)] == ["UndecodableRecord"]


@pytest.mark.parametrize("name", ["4", "exit 4", "EXIT 4", "exit4", "exit code 4", "exit-code 4", "exit_code=4", "04"])
def test_an_exit_code_is_found(name: str) -> None:
    assert [each.name for each in find(name)] == ["exit 4"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Lost", ["Lost"]),
        ("lost", ["lost"]),
        ("LOST", ["Lost", "lost"]),
        ("HandlerStuck", ["HandlerStuck"]),
        ("handlerstuck", ["HandlerStuck", "handler_stuck"]),
    ],
)
def test_an_error_and_an_event_of_one_name_differ_by_case(name: str, found: list[str]) -> None:
    assert [each.name for each in find(name)] == found


@pytest.mark.parametrize(
    ("name", "first"),
    [("RetensionGap", "RetentionGap"), ("StateholdDwon", "StateholdDown"), ("handler_stack", "HandlerStuck")],
)
def test_the_nearest_name_is_suggested(name: str, first: str) -> None:
    assert find(name) == []
    assert nearest(name)[0] == first
    assert f"did you mean {first}" in run(name, code=1)


def test_a_part_of_a_name_suggests_the_names_with_it() -> None:
    assert "StateholdBehind" in nearest("behind")


@pytest.mark.parametrize("name", ["99", "zzz", "x"])
def test_nothing_is_suggested_if_nothing_is_near(name: str) -> None:
    said = run(name, code=1)
    assert "did you mean" not in said
    assert "`statehold explain` lists all" in said


def test_it_prints_all_parts_and_whole_commands() -> None:
    said = run("OffsetDisagrees")
    for part in ("OffsetDisagrees (error)", "Meaning", "Safe", "Look at", "Do", "Call"):
        assert f"{part}\n" in said
    assert "\n    $ statehold repair adopt-offsets MODULE:SERVICE --from commit-record --why TEXT --dry-run\n" in said
    assert "](" not in said


def test_without_a_name_it_lists_all_in_one_line_each() -> None:
    lines = run().splitlines()
    for name in entries():
        assert sum(line.startswith(f" {name} ") for line in lines) == 1


def test_on_a_narrow_terminal_each_is_one_line(statehold: Commands, tmp_path: Path) -> None:
    program = str(Path(statehold.python).with_name("statehold"))
    lines = on_terminal([program, "explain"], 80, statehold.environment, tmp_path).splitlines()
    for name in entries():
        (line,) = [line for line in lines if line.startswith(f" {name} ")]
        assert len(line) <= 80
    assert len([line for line in lines if line.strip()]) == len(entries()) + 2  # the heading and its rule


def test_json_has_the_commands() -> None:
    (found,) = json.loads(run("exit", "4", "--json"))
    assert (found["name"], found["kind"]) == ("exit 4", "exit code")
    assert found["commands"] == ["statehold explain HandlerStuck"]
    assert len(json.loads(run("--json"))) == len(entries())


def test_lines_of_text_are_one_paragraph_and_commands_stay_whole() -> None:
    assert list(blocks("One\ntwo:\n$ statehold status\n$ df -h\nThree.")) == [
        ("One two:", False),
        ("statehold status", True),
        ("df -h", True),
        ("Three.", False),
    ]


def test_two_entries_of_one_name_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("Lost", "error", "a", "b", "c", "d")
    monkeypatch.setattr(source, "_read", lambda: iter([entry, entry]))
    with pytest.raises(ValueError, match="two entries for Lost"):
        source.entries.__wrapped__()
