"""A release: wheel and sdist hold the same, a tag names the version, and the workflow publishes what is built."""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from script import release
from tests.support.environments import copy_tree

from statehold.common.version import __version__

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_a_tag_names_the_version_and_the_changelog_has_its_section() -> None:
    assert release.complaints(f"v{__version__}", f"# Changelog\n\n## {__version__} - 2026-11-27\n") == []
    assert release.complaints("v9.9", "# Changelog\n\n## Unreleased\n") == [
        f"the tag is v9.9, and the version is {__version__}",
        "CHANGELOG.md has no section 9.9",
    ]


def test_the_workflow_runs_what_exists_and_publishes_what_is_built() -> None:
    steps = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["build"]["steps"]
    commands = " ".join(step.get("run", "") for step in steps)
    for path in re.findall(r"(?:script|tests)/[\w./]+", commands):
        assert (ROOT / path).is_file(), path
    published = {
        step["with"]["name"]: step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", "")
    }
    folder = release.TARGET.relative_to(ROOT)
    assert published == {"packages": f"{folder}/statehold-*", "site": f"{folder}/site"}
    assert "${{" not in commands, "an expression in a command is replaced before the shell reads it"


@pytest.mark.long
@pytest.mark.slow
def test_the_wheel_of_the_sdist_holds_what_the_wheel_of_the_tree_holds(wheel: Path, tmp_path: Path) -> None:
    tree, target = copy_tree(ROOT, tmp_path / "tree"), tmp_path / "release"
    target.mkdir()

    sdist, built = release.packages(tree, target)

    assert names(built) == names(wheel)
    assert zipfile.ZipFile(built).read("statehold/py.typed") == b""
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "docs/index.md", "tests/conftest.py", "script/release"} <= inside


def names(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("RECORD")}
