"""Threads that use a class first at the same time crash in msgspec, so each class is prepared before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.sources import modules

ROOT = Path(__file__).resolve().parents[2]

ROUNDS = """
import sys, threading, types
import msgspec
from statehold import Table
from statehold.snapshot.format.records import EntryDecoder

sys.setswitchinterval(1e-6)
KEY = {{"x": {{"a": 1}}, "y": [{{"b": "t"}}], "z": 3}}
ENTRY = msgspec.msgpack.encode(["rows", [KEY], [b"v"]])
for number in range({rounds}):
    made = types.ModuleType(f"made{{number}}")
    sys.modules[made.__name__] = made
    exec('''
import msgspec
class Inner(msgspec.Struct, frozen=True):
    a: "int" = 0
    b: "str" = ""
class Key(msgspec.Struct, frozen=True):
    x: "Inner" = Inner()
    y: "tuple[Inner, ...]" = ()
    z: "int" = 0
for made in (Inner, Key):
    made.__module__ = __name__
''', vars(made))
    if {declared}:
        Table(key=made.Key, value=int)
    barrier = threading.Barrier(8)

    def use():
        barrier.wait()
        decoder = EntryDecoder({{"rows": made.Key}})
        decoder.decode(msgspec.Raw(ENTRY))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def rounds(*, declared: bool) -> int:
    text = ROUNDS.format(declared=declared, rounds=500)
    return subprocess.run([sys.executable, "-c", text], check=False, timeout=300).returncode


@pytest.mark.slow
def test_the_keys_of_a_declared_table_are_prepared() -> None:
    assert rounds(declared=True) == 0


@pytest.mark.slow
@pytest.mark.long
def test_without_a_declaration_the_process_crashes() -> None:
    """The reason for `prepare`. If this test fails, msgspec has fixed the bug."""
    assert rounds(declared=False) < 0


def test_what_threads_decode_has_a_decoder_since_the_import() -> None:
    """`decode(data, type=...)` in a function builds the class at its first call, on any thread."""
    folders = ("worker", "balancer", "health", "kafka", "messages", "runtime", "state", "bound")
    found = [
        f"{name}:{node.lineno}"
        for name, path in modules(ROOT)
        if name.removeprefix("statehold.").split(".")[0] in folders
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "decode"
        and any(each.arg == "type" for each in node.keywords)
    ]
    assert found == []
