"""State is data: nothing that statehold reads can run code, because nothing in it could."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

#: modules whose reading functions run what they read
LOADERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "yaml"}
#: calls that make code out of text
MAKERS = {"eval", "exec", "compile", "__import__"}
#: in Python's own modules: `re.compile` is no code, `pandas.read_pickle` would be
FORBIDDEN_METHODS = {"read_pickle", "from_pickle", "enc_hook_pickle", "loads_unsafe"}
#: where text becomes code, and from what
MADE_FROM = {
    ("src/statehold/api/values/exact_values.py", "exec"): "the fields of a class that the program declares",
    ("src/statehold/testing/hash_seed.py", "import pickle"): "a test's own objects, by a pipe to its own child",
}
PACKAGES = ("src/statehold", "config", "balancer", "worker", "snapshot", "ops")


def findings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, f"import {a.name}") for a in node.names if a.name.split(".")[0] in LOADERS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LOADERS:
            yield node.lineno, f"from {node.module} import"
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in MAKERS:
                yield node.lineno, called.id
            if isinstance(called, ast.Attribute) and called.attr in FORBIDDEN_METHODS:
                yield node.lineno, called.attr
            if any(word.arg == "shell" for word in node.keywords):
                yield node.lineno, "a shell"


def test_no_module_of_statehold_turns_bytes_into_code(root: Path) -> None:
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    assert len(files) > 200
    found = [
        f"{file.relative_to(root)}:{line}: {what}"
        for file in files
        for line, what in findings(ast.parse(file.read_text(encoding="utf-8")))
        if (str(file.relative_to(root)), what) not in MADE_FROM
    ]
    assert found == []


def test_the_search_finds_what_it_looks_for() -> None:
    text = "import pickle\nfrom marshal import loads\neval('1')\nx.read_pickle(f)\nrun('ls', shell=True)\n"
    assert [line for line, _ in findings(ast.parse(text))] == [1, 2, 3, 4, 5]
