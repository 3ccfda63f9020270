"""What holds for every command: an example in its help, JSON for programs, a row in the CLI page, completion."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from script.generate import cli_page as reference
from tests.cli.commands import Commands
from typer.main import get_command
from typer.testing import CliRunner

from statehold.ops.cli.lazy_commands import loaded
from statehold.ops.cli.main import app

COMMANDS = [words for words, _ in reference.leaves()]


@cache
def help_of(*command: str) -> str:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1"})
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_can_be_pasted(command: tuple[str, ...]) -> None:
    """On a terminal of 80 columns it stands on lines of its own, unbroken."""
    text = re.sub(r" *\n", "\n", help_of(*command))

    pasted = re.search(rf"^ *(statehold {' '.join(command)}(?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert pasted is not None, text
    assert text[pasted.end() :].startswith("\n\n"), f"broken into two lines:\n{text}"
    assert "--help" not in pasted[1]


@pytest.mark.parametrize("command", [(), *COMMANDS], ids=" ".join)
def test_help_shows_each_default_once_and_no_type_of_a_flag(command: tuple[str, ...]) -> None:
    """Typer takes `[default: all]` in a text for markup and drops it, and writes <bool> behind a flag."""
    shown = re.sub(r"[\s\u2500-\u257f]", "", help_of(*command))
    written = [param.help or "" for param in dict(reference.leaves()).get(command, get_command(app)).params]

    for text in written:
        for default in re.findall(r"\[default: [^]]*\]", text):
            assert default.replace(" ", "") in shown
            assert f"{default.replace(' ', '')}[default" not in shown
    assert "<bool>" not in shown


def test_help_names_only_a_service_that_a_command_writes() -> None:
    """The wheel has no examples; `statehold new order-totals` writes the service that the examples name."""
    for command in COMMANDS:
        assert "examples" not in help_of(*command)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_has_json_output(command: tuple[str, ...]) -> None:
    assert "--json" in help_of(*command)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_page_names_each_command(command: tuple[str, ...], root: Path) -> None:
    page = (root / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    group, last = " ".join(command[:-1]), command[-1]

    rows = re.findall(r"^\| `statehold ([^`]*)` \|", page.replace("\\|", "|"), re.MULTILINE)
    reported = [row for row in rows if row.startswith(group) and last in re.split(r"[ |]+", row)]
    assert reported, f"docs/reference/cli.md has no row for statehold {' '.join(command)}"


def named(text: str) -> Iterator[list[str]]:
    """The words after `statehold` in backquotes, and of the lines of a block that can be pasted."""
    text = re.sub(r'"\s*\n\s*f?"', "", text.replace("\\|", "|"))
    pasted = "\n".join(text.replace("\\\n", "").split("```")[1::2])
    for found in re.findall(r"`statehold ([a-z][^`\n]*)", text) + re.findall(r"(?m)^[$ ]*statehold ([a-z].*)", pasted):
        yield found.split("#")[0].split()


once_loaded = cache(loaded)


def unknown(words: list[str], command: Any) -> str:
    """The first word that no command below `command` has; '' if every word is a command."""
    while words and words != ["--help"] and hasattr(command, "commands"):
        word, *words = words
        if word.startswith(("{", ".")):
            return ""
        if missing := [each for each in word.strip(".,;").split("|") if each and each not in command.commands]:
            return missing[0]
        command = once_loaded(command.commands[word.strip(".,;").split("|")[0]])
    known = {"--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))}
    options = [word.split("=")[0] for word in words if re.match("--[a-z]", word)]
    return next((each for each in options if not known.intersection(each.split("|"))), "")


def test_commands_that_pages_and_errors_name_are_commands(root: Path) -> None:
    folders = ("config", "src/statehold", "balancer", "worker", "snapshot", "ops", "examples", "deploy", "docs")
    files = [*root.glob("*.md"), *(each for folder in folders for each in (root / folder).rglob("*.*"))]
    texts = {each: each.read_text(encoding="utf-8") for each in files if each.suffix in (".md", ".py", ".service")}
    commands = get_command(app)
    wrong = {
        f"{file.relative_to(root)}: statehold {' '.join(words)}: {bad}"
        for file, text in texts.items()
        for words in named(text)
        if (bad := unknown(words, commands))
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_required_commands_exist() -> None:
    wanted = ["run", "status", "lag", "top", "new", "support-bundle", "doctor", "compact"]
    assert {(each,) for each in wanted} <= set(COMMANDS)
    assert {("config", "show"), ("config", "check"), ("txn", "list"), ("txn", "abort"), ("dev", "up")} <= set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered", "other"),
    [("statehold txn ab", "abort", "list"), ("statehold explain StateholdRe", "StateholdRebalances", "StateholdDown")],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(statehold: Commands, shell: str, line: str, offered: str, other: str) -> None:
    asked = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": "2"},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = subprocess.run(
        [str(Path(statehold.python).with_name("statehold"))],
        env=statehold.environment | asked | {"_STATEHOLD_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert offered in done.stdout, done.stderr
    assert other not in done.stdout
