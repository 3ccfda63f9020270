"""Threads that let msgspec read a class first at the same moment crash, so one at a time makes a decoder."""

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
from statehold import MsgPack
from statehold.common.decoding import make_decoder
from statehold.snapshot.format.records import EntryDecoder

sys.setswitchinterval(1e-6)
VALUE = {{"x": {{"a": 1}}, "y": [{{"b": "t"}}], "z": 3}}
DATA = msgspec.msgpack.encode(VALUE)
ENTRY = msgspec.msgpack.encode(["rows", [VALUE], [b"v"]])
for number in range({rounds}):
    made = types.ModuleType(f"made{{number}}")
    sys.modules[made.__name__] = made
    exec('''
import msgspec
class Inner(msgspec.Struct, frozen=True):
    a: "int" = 0
    b: "str" = ""
class Outer(msgspec.Struct, frozen=True):
    x: "Inner" = Inner()
    y: "tuple[Inner, ...]" = ()
    z: "int" = 0
for made in (Inner, Outer):
    made.__module__ = __name__
''', vars(made))
    barrier = threading.Barrier(8)

    def use():
        barrier.wait()
        {made}

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


def rounds(made: str) -> int:
    text = ROUNDS.format(made=made, rounds=500)
    return subprocess.run([sys.executable, "-c", text], check=False, timeout=300).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    ["MsgPack(made.Outer).decode(DATA)", 'EntryDecoder({"rows": made.Outer}).decode(msgspec.Raw(ENTRY))'],
    ids=["values", "keys"],
)
def test_threads_may_make_decoders_at_the_same_time(made: str) -> None:
    assert rounds(made) == 0


@pytest.mark.slow
@pytest.mark.long
def test_without_make_decoder_the_process_crashes() -> None:
    """The reason for it. If this test fails, msgspec has fixed the bug."""
    assert rounds("msgspec.msgpack.Decoder(made.Outer).decode(DATA)") < 0


#: what the others call, and a tool with one thread
ITSELF = {"statehold.common.decoding", "statehold.snapshot.state_edits"}
ROOMS = {
    *("api", "balancer", "bound", "client", "common", "disk", "health", "kafka", "messages", "runtime", "snapshot"),
    *("state", "worker"),
}


def test_a_function_lets_msgspec_read_types_in_one_place() -> None:
    """Also `decode(data, type=...)` reads the class at its first call, on any thread. Spark has no threads."""
    found = set()
    for name, path in modules(ROOT):
        room = name.removeprefix("statehold.")
        if room.split(".")[0] in ROOMS and not room.startswith("snapshot.spark"):
            functions = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_function(node))
            found |= {name for function in functions for call in ast.walk(function) if reads_a_type(call)}
    assert found == ITSELF


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def reads_a_type(node: ast.AST) -> bool:
    """Whether it is a call of `Decoder(...)`, of msgspec's own `type_info`, or of `decode(..., type=...)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    method = node.func.attr
    return method in ("Decoder", "type_info") or (
        method == "decode" and any(each.arg == "type" for each in node.keywords)
    )
