"""script/bootstrap: a second run downloads nothing; a first one without a network leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.environments import copy_tree, run

pytestmark = [pytest.mark.root, pytest.mark.slow]
NO_ROUTE = ("unshare", "--net", "--")  # a network namespace of its own: not even the loopback device is up
LOOPBACK_UP = (
    "import fcntl, socket, struct, subprocess, sys\n"
    "flags = struct.pack('16sh14x', b'lo', 0x1)  # IFF_UP\n"
    "fcntl.ioctl(socket.socket(), 0x8914, flags)  # SIOCSIFFLAGS\n"
    "sys.exit(subprocess.call(sys.argv[1:]))\n"
)


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if shutil.which("unshare") is None or run(*NO_ROUTE, "true").returncode != 0:
        pytest.skip("this system makes no network namespaces")


def test_a_second_run_needs_no_network(root: Path) -> None:
    again = run(*NO_ROUTE, "script/bootstrap", cwd=root)

    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


@pytest.mark.kafka
def test_a_broker_starts_without_a_route(root: Path, python: str) -> None:
    program = "from statehold.dev import Cluster\nwith Cluster() as kafka:\n    print(kafka.bootstrap_servers)\n"

    reported = run(*NO_ROUTE, python, "-c", LOOPBACK_UP, python, "-c", program, cwd=root)

    assert reported.returncode == 0, reported.stderr
    assert reported.stdout.startswith("127.0.0.1:")


@pytest.mark.parametrize("with_uv", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_first_run_without_a_network_says_so_in_one_sentence(root: Path, tmp_path: Path, with_uv: bool) -> None:
    tree = copy_tree(root, tmp_path / "tree")
    home = tmp_path / "home"
    home.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    uv = shutil.which("uv")
    if with_uv and uv:
        (programs / "uv").symlink_to(uv)
    empty = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "UV_CACHE_DIR": str(home / "uv"),
        "PATH": f"{programs}:/usr/bin:/bin",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
    }

    rejected = run(*NO_ROUTE, "script/bootstrap", cwd=tree, **empty)

    assert rejected.returncode == 1
    last = rejected.stderr.strip().splitlines()[-1]
    assert last.startswith("bootstrap: ")
    assert last.endswith("is there a network?")
    assert not (tree / ".venv").exists()
    assert not (home / "cache" / "statehold" / "uv").exists()
