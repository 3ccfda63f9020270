"""mypy --strict and pyright pass every Python block of pages and notebooks, and notice what pages say they notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.docs.test_pages import DOCS, PROGRAMS, RECIPES
from tests.support.shell import File, steps

pytestmark = pytest.mark.slow

ROOT = DOCS.parent
#: fragments, fenced as `py`, with what they leave to their reader
LEFT_OUT = {
    "how-to/operate/tracing.md": "from statehold import Handler, Service\nclass Clearing(Handler[str]): ...\n",
    "how-to/state/audit.md": "from pyspark.sql import DataFrame, SparkSession\nspark: SparkSession\n"
    "source: dict[str, str]\nmoment: str\n",
    "how-to/state/lakehouse.md": "from pyspark.sql import SparkSession\nfrom pyspark.sql import functions as f\n"
    "spark: SparkSession\n",
    "how-to/state/spark-tables.md": "from pyspark.sql import DataFrame, SparkSession\nspark: SparkSession\n"
    "changes: DataFrame\n",
    "how-to/state/state-maintenance.md": "class Position: ...\nclass OldPosition: ...\n",
    "how-to/state/upgrades.md": "from pathlib import Path\nimport msgspec, pytest\n"
    "from statehold import Handler, Record, Table\nfrom statehold.testing import Driver\n"
    "class Event(msgspec.Struct, frozen=True):\n    amount: int\n"
    "class Total(msgspec.Struct, frozen=True):\n    events: int = 0\n    amount: int = 0\n"
    "class Totals(Handler[Event]):\n    totals = Table(key=str, value=Total)\n"
    "    def on_record(self, record: Record[Event]) -> None: ...\n"
    "STATES = Path('states')\n",
    "how-to/write/retries.md": "from statehold import dead_letter, retry, retry_later\n"
    "class WebhookDown(Exception): ...\n",
    "how-to/write/sinks.md": "from statehold.errors import SinkRefused\nfrom statehold import dead_letter, retry\n",
    "reference/ops.md": "from fastapi import FastAPI\nfrom statehold import Handler, Service\n"
    "app = FastAPI()\nservice = Service('web', input='orders', handler=Handler[str])\n",
}
#: signatures
API = "reference/api/"
#: programs of other libraries, which are not installed here
FOREIGN = {"how-to/migrate/faust.md", "how-to/migrate/quix-streams.md"}
#: modules that a page imports and this environment lacks
ABSENT = {"opentelemetry.exporter"}

PROGRAM = """
from typing import Annotated, Any, Literal, Optional, assert_type

import msgspec

from statehold import (
    Client, Handler, Hopping, Int64, JoinBuffer, Json, Output, Record, Reference, Rekey, Retired, RowPage, Serde,
    Service, Session, Table, Tumbling, on,
)
from statehold.testing import Driver
from statehold.api.handler import EffectKey


class A(msgspec.Struct, frozen=True, tag=True):
    amount: int


class B(msgspec.Struct, frozen=True, tag=True):
    name: str


class SerdeOfA:
    def encode(self, value: A, /) -> bytes:
        return b""

    def decode(self, data: bytes, /) -> A:
        return A(1)


AB = A | B


async def read(client: Client) -> None:
    assert_type(await client.get_many("t", ["k"], value=A), dict[str, A])
    assert_type(await client.get_many("t", ["k"], value=A | B), dict[str, A | B])
    assert_type(await client.get_range("t", value=AB), RowPage[A | B])
    async for change in client.watch("t", value=A | B):
        assert_type(change.value, A | B)
    async for one in client.watch("t", value=SerdeOfA()):
        assert_type(one.value, A)


def read_blocking(client: Client) -> None:
    assert_type(client.get_many_blocking("t", ["k"], value=A | B), dict[str, A | B])
    assert_type(client.get_range_blocking("t", value=list[A]), RowPage[list[A]])
    for change in client.watch_blocking("t", value=A | B):
        assert_type(change.value, A | B)


class Declared(Handler[None]):
    either = Table(key=str, value=A | B)
    former = Retired(key=str | int)
    alias = Table(key=str, value=AB)
    maybe = Table(key=tuple[str, int], value=Optional[A], sorted=True)
    limited = Table(key=Annotated[int, msgspec.Meta(ge=0)], value=Annotated[int, msgspec.Meta(gt=0)])
    sides = Table(key=str, value=Literal["buy", "sell"])
    plain = Table(key=str, value=A)
    anything = Table(key=str, value=Json(A))
    encoded = Table(key=str, value=SerdeOfA())
    out = Output("out", value=A | None)
    text = Output("text", value=str | None)
    raw = Output("raw", value=SerdeOfA())
    rates = Reference("rates", key=str, value=A | B)
    minutes = Tumbling(60, key=str, value=A | B)
    hops = Hopping(60, 30, key=str, value=A | None)
    visits = Session(60, key=str, value=A | B, merge=lambda earlier, later: later)
    pairs = JoinBuffer(60, key=str, left=A | B, right=B)

    @on("a", value=A)
    def a(self, record: Record[A]) -> None:
        self.effect(post, record.value.amount)
        self.effect(post, record.value.amount, "note")
        self.effect(self.own)
        self.effect(print, 1, 2)

    @on("wide", value=A)
    def wide(self, record: Record[A | B]) -> None: ...

    @on("b", value=B | None)
    def b(self, record: Record[B | None]) -> None: ...

    @on("json", value=Json(A))
    def json(self, record: Record[A]) -> None: ...

    @on("serde", value=Annotated[A, SerdeOfA()])
    def serde(self, record: Record[A]) -> None: ...

    keyed = Output("keyed", value=A, key=int)
    keyless = Output("keyless", value=A, key=int | None)
    moved = Rekey("moved", key=str, value=B)

    @on("keyed", value=A, key=int)
    def number(self, record: Record[A, int]) -> None:
        assert_type(record.key, int)
        assert_type(record.raw_key, bytes | None)
        self.keyed.send(record.value, key=record.key)
        self.keyed.send_all([record.value], keys=[record.key])
        self.keyless.send(record.value)
        self.keyless.send(record.value, headers=[("a", b"")])
        self.keyless.send(record.value, None)
        self.keyless.send(record.value, 1)
        self.keyless.send_all([record.value])

    @on("optional", value=A | None, key=str | None)
    def optional(self, record: Record[A | None, str | None]) -> None:
        assert_type(record.key, str | None)

    @on("long", value=A, key=Int64())
    def long(self, record: Record[A, int]) -> None: ...

    long_keys = Output("long", value=SerdeOfA(), key=int | None)
    several = Output("several", value=A | None, key=Int64())
    by_long = Rekey("by_long", key=Int64(), value=int | None)
    by_pair = Rekey("by_pair", key=tuple[str, int], value=Json(A))

    @on("json_keyed", value=Json(A), key=int | None)
    def json_keyed(self, record: Record[A, int | None]) -> None:
        assert_type(self.long_keys, Output[A, int | None])
        assert_type(self.several, Output[A | None, int])
        assert_type(self.minutes.at(record, "a"), list[tuple[int, int, A | B]])
        self.visits.update(record, "a", lambda found: found or record.value)

    @on(by_long)
    def of_long(self, record: Record[int | None, int]) -> None:
        assert_type(self.pairs.left(record, "a"), list[B])

    @on(by_pair)
    def of_pair(self, record: Record[A, tuple[str, int]]) -> None: ...

    @on(moved)
    def move(self, record: Record[B, str]) -> None:
        assert_type(record.key, str)

    def own(self, key: EffectKey) -> None: ...

    def types(self, record: Record[A]) -> None:
        assert_type(self.either["a"], A | B)
        assert_type(self.alias["a"], A | B)
        assert_type(self.maybe.get(("a", 1)), A | None)
        assert_type(self.limited, Table[int, int])
        assert_type(self.plain.get("a"), A | None)
        assert_type(record.key, bytes | None)
        assert_type(self.keyed, Output[A, int])
        assert_type(self.encoded["a"], A)
        assert_type(self.out, Output[A | None])
        assert_type(self.text, Output[str | None])
        assert_type(self.raw, Output[A])
        assert_type(self.rates["a"], A | B)
        assert_type(self.minutes.at(record, "a"), list[tuple[int, int, A | B]])
        assert_type(self.hops, Hopping[str, A | None])
        assert_type(self.visits, Session[str, A | B])
        assert_type(self.pairs.left(record, "a"), list[B])
        assert_type(self.pairs.right(record, "a"), list[A | B])


class Keyed(Handler[A, str]):
    def on_record(self, record: Record[A, str]) -> None:
        assert_type(record.key, str)


SERVICE = Service("keyed", input="a", handler=Keyed)
DRIVER = Driver(Keyed)


def post(key: EffectKey, amount: int, note: str = "") -> None: ...


class Wrong(Declared):
    @on("c", value=A)  # wrong
    def c(self, record: Record[B]) -> None: ...

    @on("d", value=A | None)  # wrong
    def d(self, record: Record[A]) -> None: ...

    @on("e", value=A, key=int)  # wrong
    def e(self, record: Record[A, str]) -> None: ...

    def mistakes(self) -> None:
        self.keyed.send(A(1), key="a")  # wrong
        self.keyed.send(A(1))  # wrong
        self.keyed.send_all([A(1)])  # wrong
        self.moved.send(B(""), key=1)  # wrong
        self.either["a"] = 1  # wrong
        self.plain["a"] = B("")  # wrong
        self.out.send(B(""))  # wrong
        self.text.send(b"")  # wrong
        self.effect(post)  # wrong
        self.effect(post, "much")  # wrong
        self.effect(post, 1, "", 2)  # wrong
        self.effect(no_key, 1)  # wrong


def no_key(amount: int) -> None: ...
"""


def programs() -> dict[str, str]:
    """Return the Python of pages and notebooks by the name of a module: blocks together, a recipe by itself."""
    found = {"readme": "".join(_blocks(ROOT / "README.md", "python")).replace("from totals import Totals\n", "")}
    files = [step for page in PROGRAMS for step in steps(DOCS / page) if isinstance(step, File)]
    found |= {file.name.removesuffix(".py"): file.text for file in files}
    for notebook in sorted(ROOT.glob("examples/*/*.ipynb")):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        code = ["".join(each["source"]) for each in cells if each["cell_type"] == "code"]
        found[f"notebook_{notebook.stem}"] = "\n".join(code)
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if name in PROGRAMS or name.startswith(API):
            continue
        module = re.sub(r"\W", "_", name.removesuffix(".md"))
        for number, block in enumerate(_blocks(page, "python")):
            one = f"{module}_{number}" if name == RECIPES else module
            found[one] = found.get(one, "") + f"{block}\n"
        for number, block in enumerate([] if name in FOREIGN else _blocks(page, "py")):
            found[f"{module}_fragment_{number}"] = LEFT_OUT[name] + block
    return found


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a module for each page."""
    directory = tmp_path_factory.mktemp("pages")
    for name, text in programs().items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return directory


def mypy_options() -> str:
    """Return the sections of pyproject.toml that configure mypy."""
    sections = re.split(r"^(?=\[)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "".join(each for each in sections if each.startswith(("[tool.mypy", "[[tool.mypy")))


def mypy(directory: Path) -> list[str]:
    """Return what mypy --strict says about the programs of a directory: FILE:LINE: and the error.

    With the options of `script/check`, because with others mypy would check all that the programs import again, and
    `script/check` once more after that.
    """
    settings = directory / "pyproject.toml"
    absent = json.dumps([f"{name}.*" for name in sorted(ABSENT)])
    settings.write_text(
        f"{mypy_options()}\n[[tool.mypy.overrides]]\nmodule = {absent}\nignore_missing_imports = true\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(ROOT / ".mypy_cache")]
    files = sorted(path.name for path in directory.glob("*.py"))
    done = subprocess.run([*command, *files], cwd=directory, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert re.search(rf"{len(files)} source files?", done.stdout), done.stdout
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def pyright(directory: Path) -> list[str]:
    """Return what pyright says, likewise."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / "src")], "reportMissingImports": False}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    program = [str(Path(sys.executable).with_name("basedpyright")), "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*program, "-p", str(directory)], capture_output=True, text=True, check=False, timeout=600, cwd=directory
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(directory.glob("*.py")))
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]


Checker = Callable[[Path], list[str]]


@pytest.mark.parametrize("checker", [mypy, pytest.param(pyright, marks=pytest.mark.long)])
def test_the_python_of_the_pages_has_no_error_of_types(checker: Checker, pages: Path) -> None:
    assert checker(pages) == []


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_declarations_have_the_types_that_they_name(checker: Checker, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    wrong = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# wrong")]
    found = checker(tmp_path)
    assert sorted({int(line.split(":")[1]) for line in found}) == wrong, "\n".join(found)
