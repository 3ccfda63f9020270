"""The product's modules by their installed names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FOLDERS = {"src/statehold": "statehold"} | {
    name: f"statehold.{name}" for name in ("config", "balancer", "worker", "snapshot", "ops")
}


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield every module of the packages by its installed name."""
    for folder, package in FOLDERS.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), path
