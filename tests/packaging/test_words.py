"""Comments, docstrings, messages and docs avoid the words that puzzle a newcomer, and so do the names of tests.

A string without a space is a name and is not checked.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("balancer", "config", "worker", "snapshot", "ops", "src/statehold")
PROGRAMS = ("script", "tests", "examples", "benchmarks")
#: a pattern, and what to write instead
INSTEAD = {
    r"an act": "the action",
    r"anew": "again",
    r"as it comes": "at once",
    r"beside": "next to, in parallel",
    r"comes? twice": "is duplicated",
    r"for ever": "permanently",
    r"g(?:i|a)ves? up": "abandons",
    r"goes on": "continues",
    r"(?:is|are|was|were) (?-i:none)": "does not exist",
    r"looks? after": "monitors",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:no|some)body": "the person or the component",
    r"ours?|us|we": "the component",
    r"owed": "pending",
    r"so many": "the number",
    r"surely": "nothing",
    r"tells?|told": "reports, returns, logs",
    r"whoever": "the person or the component",
    # old words of the glossary
    r"adopt record": "state-replacement record",
    r"attendant": "watchdog",
    r"fulls|full topics?": "full snapshots, snapshot topic",
    r"genesis mark": "initial commit record",
    r"hot standby": "standby replica",
    r"increment topics?|increments": "changelog topic, incremental snapshots",
    r"lineages?": "state generation",
    r"parked": "blocked (a key), paused (a partition)",
    r"second look": "recheck",
    r"surgery": "state maintenance",
    r"taint(?:s|ed)?": "suspicion, suspect",
}
#: a part of a path or of a name, and what an f-string computes, is no word
BANNED = {re.compile(rf"(?<![\w./{{`])(?:{pattern})(?![\w}}])", re.IGNORECASE): new for pattern, new in INSTEAD.items()}
#: old words in the name of a test or of its file
OLD_NAMES = re.compile(
    "(?<![a-z])(?:adopt_record|anew|beside|buried|for_ever|fulls|increments?|(?<!dead_)letters?|lies|lineages?|marks?|mend(?:s|ed)"
    "|nobodys?|owed|parked|refuse[sd]?|second_look|somebody|surgery|taint|tainted|tells?|told|whoever)(?![a-z])"
)


ANY = re.compile("|".join(pattern.pattern for pattern in BANNED), re.IGNORECASE)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of a program's comments and strings, or of a page without its quoted names."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(re.sub(r"`[^`\n]+`", "", text).splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE") and " " in token.string:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def findings(root: Path) -> list[str]:
    """Return the complaints about programs and pages."""
    found = []
    programs = [path for folder in (*PACKAGES, *PROGRAMS) for path in (root / folder).rglob("*.py")]
    pages = [*(root / "docs").rglob("*.md"), *root.glob("*.md")]
    for path in sorted({*programs, *pages} - {Path(__file__).resolve()}):
        name = path.relative_to(root)
        for number, line in prose(path):
            for pattern, instead in BANNED.items() if ANY.search(line) else ():
                if match := pattern.search(line):
                    found.append(f"{name}:{number}: {match[0]!r}: write {instead!r}")
    return found


def test_prose_has_no_old_word(root: Path) -> None:
    assert findings(root) == []


def test_no_test_is_named_by_an_old_word(root: Path) -> None:
    files = sorted((root / "tests").rglob("test_*.py"))
    names = [name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))]

    assert len(names) > 1000
    assert [name for name in (*names, *(path.stem for path in files)) if OLD_NAMES.search(name)] == []


def test_prose_is_found(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text('"""A first line.\n\nOur second."""\nour = f"we {1} go"  # told\nname = "anew"\n')

    text = " ".join(line for _, line in prose(program))

    words = {match[0] for pattern in BANNED for match in pattern.finditer(text)}
    assert words == {"Our", "we", "told"}
    assert [number for number, line in prose(program) if "Our" in line] == [3]
