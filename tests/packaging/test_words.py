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
    r"(?<!dlq-)bur(?:y|ies|ied|ials?)": "dead-letter, add to the dead letters",
    r"followers": "replicas",
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
    "(?<![a-z])(?:adopt_record|anew|beside|buried|bury|followers|for_ever|fulls|increments?|(?<!dead_)letters?|lies|lineages?|marks?|mend(?:s|ed)"
    "|nobodys?|owed|parked|refuse[sd]?|second_look|somebody|surgery|takers?|taint|tainted|tells?|told|whoever)(?![a-z])"
)

#: old words in a name of the code, or of a file or folder; CONTRIBUTING.md says what was weighed
REMOVED = re.compile(
    "(?<![a-z])(?:bur(?:y|ies|ied|ials?)|followers|fulls|genesis|(?<!dead_)letters|parked|second_look|takers?)(?![a-z])"
)
#: programs that use letters of the alphabet
ALPHABET = {"snapshot/format/records.py", "tests/cli/test_tables.py", "tests/support/netns.py"}


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


def removed_in(text: str, path: str) -> list[str]:
    """Return the names of a program, and its path, with a removed word."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    names = {path.removesuffix(".py"), *(token.string for token in tokens if token.type == tokenize.NAME)}
    return sorted(name for name in names if REMOVED.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def test_removed_words_do_not_come_back_as_names(root: Path) -> None:
    found = {}
    for path in sorted(
        path for folder in (*PACKAGES, "script", "tests", "examples") for path in (root / folder).rglob("*.py")
    ):
        name = str(path.relative_to(root))
        if name not in ALPHABET and (names := removed_in(path.read_text(encoding="utf-8"), name)):
            found[name] = names
    assert found == {}


def test_a_removed_word_is_found_in_every_form() -> None:
    text = """
fulls = LocalFulls(NO_FULLS, self._followers).bury(letters)
full_snapshots = dead_letters(DeadLetters, "fulls")
"""

    assert removed_in(text, "worker/fulls/a.py") == [
        "LocalFulls",
        "NO_FULLS",
        "_followers",
        "bury",
        "fulls",
        "letters",
        "worker/fulls/a",
    ]


def test_prose_is_found(tmp_path: Path) -> None:
    program = tmp_path / "a.py"
    program.write_text('"""A first line.\n\nOur second."""\nour = f"we {1} go"  # told\nname = "anew"\n')

    text = " ".join(line for _, line in prose(program))

    words = {match[0] for pattern in BANNED for match in pattern.finditer(text)}
    assert words == {"Our", "we", "told"}
    assert [number for number, line in prose(program) if "Our" in line] == [3]
