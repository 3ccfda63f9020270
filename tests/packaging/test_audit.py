"""`script/audit` finds nothing in what is locked, and finds what it looks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def audit(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", root / "script" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_locks_are_exact_and_hashed_and_of_no_known_fault(audit: ModuleType) -> None:
    assert [found for lock in audit.LOCKS for found in audit.of_lock(lock)] == []


def test_each_fault_of_a_lock_is_named(audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    good = "attrs==25.1.0 \\\n    --hash=sha256:00\n"
    (tmp_path / "lock").write_text(good + "idna==3.6 \\\n    --hash=sha256:00\nloose>=1\nbare==1.0\n")
    assert [found.split(": ", 1)[1] for found in audit.of_lock("lock")] == [
        "idna 3.6: CVE-2024-3651; 3.7 is good",
        "loose has no exact version",
        "loose has no hash",
        "bare has no hash",
    ]
