"""Writes JSON values as YAML, which no dependency of statehold does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

#: text that needs no quotes: YAML reads it as text, and as the same text
_PLAIN: Final = re.compile(r"[A-Za-z_/](?:[\w./@+-]| (?=[\w./@+-]))*", re.ASCII)
_WORDS: Final = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null"])
#: characters that a YAML document must not contain
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def yaml_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a value that JSON can hold."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", each, f"{indent}  ")
    elif isinstance(value, list) and value:
        for each in value:
            yield from _item(each, indent)
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, (dict, list)) and value:
        yield head
        yield from yaml_lines(value, indent)
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: Any, indent: str) -> Iterator[str]:
    """Yield an item of a list: its first line follows the dash."""
    first, *rest = yaml_lines(value, f"{indent}  ")
    yield f"{indent}- {first[len(indent) + 2 :]}"
    yield from rest


def _scalar(value: Any) -> str:
    if isinstance(value, float) and "e" in (text := json.dumps(value)) and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 reads 5e-3 as text
    if not isinstance(value, str):
        return json.dumps(value).replace("-Infinity", "-.inf").replace("Infinity", ".inf").replace("NaN", ".nan")
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)
