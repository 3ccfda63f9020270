"""Generates docs/reference/cli-reference.md from the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from statehold.ops.cli.lazy_commands import loaded
from statehold.ops.cli.main import app

_INTRODUCTION = """\
# Command reference

This file is generated: `python -m script.generate`. A test compares the two. What the commands are for, how they are
used together, the exit codes: [cli.md](cli.md). Every command also takes `--help`.
"""
_COMPLETION = """
## Completion
`statehold --install-completion` sets up the shell that it runs in (bash, zsh, fish, PowerShell);
`statehold --show-completion` prints what it would write.
"""


def leaves(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, as it is typed, in the order of its name."""
    command = get_command(app) if command is None else loaded(command)
    inside = getattr(command, "commands", None)
    if inside is None:
        yield words, command
        return
    for name, each in sorted(inside.items()):
        yield from leaves(each, (*words, name))


def document() -> str:
    """The whole page as Markdown."""
    return _INTRODUCTION + "".join(_section(words, command) for words, command in leaves()) + _COMPLETION


def _section(words: tuple[str, ...], command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if _is_shown(each)]
    usage = " ".join(["statehold", *words, *(_name(each) for each in arguments), *(["[OPTIONS]"] if options else [])])
    lines = ["", f"## statehold {' '.join(words)}", "```", usage, "```", *_text(command.help or "")]
    if rows := [*map(_argument, arguments), *map(_option, options)]:
        lines += ["", "| | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _is_shown(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden


def _text(help_text: str) -> Iterator[str]:
    """Paragraphs as they stand; an example is a block."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(help_text.replace("\b", ""))):
        if paragraph.strip().startswith("statehold "):
            yield from ("", "```sh", inspect.cleandoc(paragraph), "```")
        else:
            yield from ("", _escaped(" ".join(line.strip() for line in paragraph.strip().splitlines())))


def _name(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    return name if parameter.required else f"[{name}]"


def _argument(parameter: Any) -> str:
    return f"| `{_cell(_name(parameter))}` | {_help(parameter)} |"


def _option(parameter: Any) -> str:
    names = "`, `".join([*parameter.opts, *parameter.secondary_opts])
    metavar = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return f"| `{_cell(names + metavar)}` | {_help(parameter)} |"


def _help(parameter: Any) -> str:
    text = _escaped(" ".join((parameter.help or "").replace("\\[", "[").split()))
    default = parameter.default
    if parameter.required:
        return f"{text} **Needed.**"
    if default in (None, False, (), []) or callable(default) or "[default" in text:
        return text
    return f"{text} Default: `{default}`."


def _escaped(text: str) -> str:
    return _cell(text).replace("[", "\\[").replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
