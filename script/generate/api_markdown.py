"""Turns the source of a class or a function into Markdown: signatures as written, docstrings, `#:` comments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
#: a signature that is longer has a line for each parameter
_WIDE = 100
#: names of decorators that show what a method is
_KINDS = {"property": "property ", "cached_property": "property ", "classmethod": "classmethod ", "staticmethod": ""}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Member(NamedTuple):
    """A method, a property or an attribute, with its signatures and its docstring."""

    name: str
    signatures: list[str]
    doc: str


def members(kind: type, *, without: frozenset[str], operators: bool, until: type = object) -> list[Member]:
    """Return the public members in the order of the source, with those of statehold's base classes before `until`."""
    found: dict[str, Member] = {}
    bases = [base for base in kind.__mro__ if base.__module__.startswith("statehold")]
    if until in bases:
        bases = bases[: bases.index(until)]
    for base in bases:
        for member in _own(base):
            special = member.name.startswith("_")
            shown = operators and member.name in _OPERATORS if special else member.name not in without
            if shown and member.name not in found:
                found[member.name] = member
    return list(found.values())


_OPERATORS = ("__getitem__", "__setitem__", "__delitem__", "__contains__", "__iter__", "__len__")


def constructor(kind: type) -> list[str]:
    """Return the signatures of a class: of its `__init__`, else of its fields; none for a protocol or an exception."""
    for base in kind.__mro__:
        if not base.__module__.startswith("statehold"):
            continue
        made = [member for member in _own(base) if member.name == "__init__"]
        if made:
            return [f"class {kind.__name__}{each.partition('__init__')[2]}" for each in made[0].signatures]
    fields = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", None)
    fields = fields or list(getattr(kind, "__dataclass_fields__", ()))
    if not fields:
        return []
    own = {member.name: member.signatures[0] for base in reversed(kind.__mro__[:-1]) for member in _own(base)}
    return [_call(f"class {kind.__name__}", [own[name] for name in fields], "")]


def function(module: str, name: str) -> Member:
    """Return a function of a module."""
    source = inspect.getsource(importlib.import_module(module))
    return next(each for each in _members(ast.parse(source), source) if each.name == name)


def _own(kind: type) -> list[Member]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # a class of the interpreter
        return []
    return list(_members(ast.parse(source).body[0], source))


def _members(tree: Any, source: str) -> Iterator[Member]:
    lines = source.splitlines()
    overloads: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, Function):
            signature, decorators = _signature(node), [ast.unparse(each) for each in node.decorator_list]
            if "overload" in decorators:
                if "TypeForm" not in signature:  # the same call again, for type checkers
                    overloads.setdefault(node.name, []).append(signature)
                continue
            yield Member(node.name, overloads.get(node.name, [signature]), ast.get_docstring(node) or "")
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                yield Member(target.id, [_attribute(node)], _comment(lines, node.lineno - 1))


def _attribute(node: ast.AnnAssign | ast.Assign) -> str:
    """Return an attribute as it is written, without a default that is longer than a word."""
    text = ast.unparse(node)
    return text if len(text) < _WIDE else text.partition(" = ")[0]


def _comment(lines: list[str], at: int) -> str:
    """Return the comment that begins with #: before a line."""
    found: list[str] = []
    while at and lines[at - 1].lstrip().startswith("#:"):
        at -= 1
        found.insert(0, lines[at].lstrip()[2:].strip())
    text = " ".join(found)
    return text[:1].upper() + text[1:] + ("." if text and not text.endswith(".") else "")


def _signature(node: Function) -> str:
    decorators = [ast.unparse(each).rpartition(".")[2] for each in node.decorator_list]
    kind = next((_KINDS[each] for each in decorators if each in _KINDS), "")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    if kind == "property ":
        return f"property {node.name}{returns.replace(' -> ', ': ', 1)}"
    kind = f"async {kind}" if isinstance(node, ast.AsyncFunctionDef) else kind
    return _call(f"{kind}{node.name}", list(_parameters(node)), returns)


def _call(name: str, parameters: list[str], returns: str) -> str:
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= _WIDE:
        return line
    return f"{name}(\n{''.join(f'    {each},{chr(10)}' for each in parameters)}){returns}"


def _parameters(node: Function) -> Iterator[str]:
    """Yield the parameters as they are written, without self."""
    args = node.args
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    static = "staticmethod" in map(ast.unparse, node.decorator_list)
    for number, (each, default) in enumerate(zip(plain, defaults, strict=True)):
        if number or static or each.arg not in ("self", "cls"):
            yield _parameter(each, default)
        if number == len(args.posonlyargs) - 1:
            yield "/"
    if args.vararg:
        yield f"*{_parameter(args.vararg, None)}"
    elif args.kwonlyargs:
        yield "*"
    for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _parameter(each, default)
    if args.kwarg:
        yield f"**{_parameter(args.kwarg, None)}"


def _parameter(each: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(each)
    if default is None:
        return text
    return f"{text}{' = ' if each.annotation else '='}{ast.unparse(default)}"


def prose(doc: str, link: Callable[[str], str]) -> str:
    """Return a docstring as Markdown. `link` returns the address of a public name, empty if it has none."""
    blocks: list[str] = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("    "):
            code = textwrap.dedent(paragraph)
            follows = bool(blocks) and blocks[-1].startswith("```")
            if code.startswith("def ") or (follows and code.startswith("@")):
                code = f"\n{code}"  # as ruff formats it
            if follows:
                blocks[-1] = f"{blocks[-1].removesuffix('```')}\n{code}\n```"
            else:
                blocks.append(f"```py\n{code}\n```")
        elif paragraph.strip():
            blocks.append(_fields(_links(paragraph, link)))
    return "\n\n".join(blocks)


def _links(paragraph: str, link: Callable[[str], str]) -> str:
    def code(found: re.Match[str]) -> str:
        address = link(found[1])
        return f"[`{found[1]}`]({address})" if address else found[0]

    def page(found: re.Match[str]) -> str:
        title = (DOCS / f"{found[1]}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title}](../../{found[1]}.md)"

    return re.sub(r"\bdocs/([\w/-]+)\.md", page, re.sub(r"`([^`]+)`", code, paragraph))


def _fields(paragraph: str) -> str:
    """Put the fields of a paragraph, such as :raises X:, into a list."""
    first, *fields = re.split(r"\s*(?=:(?:raises|param|returns)[^:`]*:)", paragraph)
    listed = []
    for field in filter(None, fields):
        kind, name, text = re.match(r":(\w+) ?([^:]*): ?(.*)", " ".join(field.split())).groups()  # type: ignore[union-attr]
        name = ", ".join(f"`{each.strip()}`" for each in name.split(",")) if name else ""
        head = {"raises": f"Raises {name}", "param": name, "returns": "Returns"}[kind]
        listed.append(f"- {head}: {text}" if text else f"- {head}")
    return "\n\n".join(filter(None, (first, "\n".join(listed))))


def shown(signatures: list[str]) -> str:
    text = re.sub(r"'([^'\"]*)'", r'"\1"', "\n".join(signatures))
    return f"```py\n{text}\n```" if signatures else ""


def tree(module: str) -> str:
    """Return the tree of classes that a module's docstring shows."""
    doc = inspect.getdoc(sys.modules[module]) or ""
    return f"```text\n{doc[doc.index('StateholdError') :]}\n```"


def slug(heading: str) -> str:
    """Return the anchor that GitHub and the site give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
