"""The units under deploy/systemd, read by systemd itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = ("holdfast-compact@.service", "holdfast-compact@.timer")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_has_nothing_to_say_against_the_units(root: Path, tmp_path: Path) -> None:
    installed = str(Path(sys.executable).with_name("holdfast"))
    for unit in UNITS:
        text = (root / "deploy" / "systemd" / unit).read_text(encoding="utf-8")
        (tmp_path / unit).write_text(text.replace("/opt/holdfast/bin/holdfast", installed))

    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
