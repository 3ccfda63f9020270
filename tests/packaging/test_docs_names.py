"""The pages name only what exists: files, modules, classes, settings, and words of the code."""

from __future__ import annotations

import importlib
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from statehold.config.sources import known_options

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md"))]
)
FOLDERS = "balancer|benchmarks|config|deploy|docs|examples|ops|script|snapshot|src|tests|worker"
PATH = re.compile(rf"(?<![\w/.$:<>-])(?:{FOLDERS})/[\w./*@-]*\w")
DOTTED = re.compile(r"(?<![\w./-])(?:statehold|examples)(?:\.\w+)+(?::\w+)?(?![\w/-])")
IN_BACKQUOTES = re.compile(r"`([^`\n]+)`")
#: a word that only code has: with an underscore inside, or with two humps
WORD = re.compile(r"\b[A-Za-z][A-Za-z0-9]*(?:_+[A-Za-z0-9]+)+|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+")
#: names of other projects, of an example, and attributes of a Service
OTHERS = {
    "APPLICATION_ID_CONFIG",
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "GracePeriodSeconds",
    "LoadCredential",
    "OldSerde",
    "STREAM_TIME",
    "TopologyTestDriver",
    "TxnCoordinator",
    "TxnOffsetCommit",
    "WALL_CLOCK_TIME",
    "consumer_offsets",
    "expire_snapshots",
    "get_asgi_application",
    "state.get",
    "state.set",
    "group_by",
    "tumbling_window",
    "group.id",
    "kafka.extra",
    "list_consumer_group_offsets",
    "process_cpu_seconds",
    "produce_batch",
    "rd_kafka_txn_handle_AddPartitionsToTxn",
    "service.metrics",
    "transaction_state",
    "synchronous_standby_names",
    "txn_req_cnt",
    "value_partition",
}
SUFFIXES = {
    "md",
    "toml",
    "py",
    "service",
    "html",
    "yml",
    "json",
    "target",
    "timer",
    "ctl",
    "pem",
    "env",
    "Service",
    "new",
}


def pages() -> list[object]:
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES]


#: what tools leave in a tree, hidden folders among them
CACHES = re.compile(r"(^|/)(\.(?!ci/)|build/|__pycache__|node_modules|[^/]+\.egg-info)")


@cache
def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():  # a copy of the tree, such as an unpacked sdist
        ours = (path for path in ROOT.rglob("*") if not CACHES.search(path.relative_to(ROOT).as_posix()))
        return [path for path in ours if path.is_file()]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@cache
def code() -> str:
    """All tracked text besides the pages and this test."""
    left_out = Path(__file__)
    read = (path for path in tracked() if path.suffix != ".md" and path != left_out and "golden" not in path.parts)
    return "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in read)


@cache
def words() -> frozenset[str]:
    settings = {f"STATEHOLD_{key.upper().replace('.', '__')}" for key in known_options()}
    sections = {setting.rsplit("__", 1)[0] for setting in settings}
    found = {*re.findall(r"\w+", code()), *settings, *sections, *(path.stem for path in tracked())}
    prefixes = {word.rsplit("_", 1)[0] for word in found if word.startswith("STATEHOLD_")}
    return frozenset(found | prefixes)


def is_there(name: str) -> bool:
    """Whether a path, perhaps with a wildcard, is in the repository."""
    return any(ROOT.glob(name)) if "*" in name else (ROOT / name).exists()


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, something in one, or quoted in the code."""
    dotted, _, service = name.partition(":")
    parts = dotted.split(".") + ([service] if service else [])
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                table = f'"{{PREFIX}}{dotted.partition(".")[2]}'
                return f'"{name}"' in code() or table in code()
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", pages())
def test_each_path_is_there(page: Path) -> None:
    named = set(PATH.findall(page.read_text(encoding="utf-8")))
    assert sorted(path for path in named if not is_there(path)) == []


@pytest.mark.parametrize("page", pages())
def test_each_dotted_name_is_there(page: Path) -> None:
    named = {
        name for name in DOTTED.findall(page.read_text(encoding="utf-8")) if name.rsplit(".", 1)[-1] not in SUFFIXES
    }
    assert sorted(name for name in named if not resolves(name)) == []


@pytest.mark.parametrize("page", pages())
def test_each_setting_is_there(page: Path) -> None:
    known = set(known_options())
    sections = {key.split(".")[0] for key in known}
    named = re.findall(r"`([a-z]+)\.([a-z_]+)(?: = [^`]*)?`", page.read_text(encoding="utf-8"))
    settings = {f"{section}.{key}" for section, key in named if section in sections and key not in SUFFIXES}
    groups = {key.rsplit(".", 1)[0] for key in known}
    assert sorted(settings - known - groups - OTHERS) == []


@pytest.mark.parametrize("page", pages())
def test_each_name_in_backquotes_occurs_in_the_code(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    quoted = " ".join(re.sub(r"\S+/\S+|\w+\.py\b", "", each) for each in IN_BACKQUOTES.findall(text))
    named = {word.removeprefix("statehold_").removesuffix("_total") for word in WORD.findall(quoted)}
    assert sorted(named - words() - OTHERS) == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_page_and_section_that_the_code_names_is_there() -> None:
    named = set(re.findall(r"docs/([\w/-]+\.md)(?:#([\w-]+))?", code()))
    pages = {page: anchors(ROOT / "docs" / page) for page, _ in named if is_there(f"docs/{page}")}
    missing = [
        f"{page}#{anchor}" for page, anchor in named if page not in pages or (anchor and anchor not in pages[page])
    ]
    assert sorted(missing) == []
