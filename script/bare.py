"""Run a command in a minimal Debian that has only python3, git and ca-certificates, in a clone of HEAD.

    script/bare script/demo             as root
    script/bare --user script/demo      as a user who has Python's venv, but no Java
    script/bare                         a shell

The Debian is made by debootstrap, kept in the cache and made again after a week. Each call works in a copy of it, in
namespaces of its own, so no process outlives the call. Its host name does not resolve. It downloads everything, because
it sees no cache of this machine. Mirrors, proxies and certificates are those of this machine: `Machine._configure`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from script.packages import apt_get

from statehold.dev.jars import cache_root, one_at_a_time

ROOT: Final = Path(__file__).resolve().parent.parent
RELEASE: Final = "bookworm"
PACKAGES: Final = "python3,git,ca-certificates"
KEPT: Final = 7 * 24 * 3600.0
#: RFC 2606 reserves `invalid`, so no resolver knows this name.
HOST_NAME: Final = "bare.invalid"
USER: Final = "someone"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: What a command needs to reach this machine's mirrors: names resolved, certificates, package indexes.
SYSTEM_FILES: Final = (
    "etc/resolv.conf",
    "etc/hosts",
    "etc/ssl/certs",
    "usr/local/share/ca-certificates",
    "etc/pip.conf",
    "etc/uv/uv.toml",
    "etc/apt/auth.conf",
    "etc/apt/auth.conf.d",
)
HOME_FILES: Final = (
    ".config/pip/pip.conf",
    ".pip/pip.conf",
    ".config/uv/uv.toml",
    ".config/jgo.conf",
    ".jgorc",
    ".m2/settings.xml",
)
CERTIFICATES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
VARIABLES: Final = (
    "CI",
    *CERTIFICATES,
    "SSL_CERT_DIR",
    "*_proxy",
    "*_PROXY",
    "PIP_*INDEX*",
    "PIP_*TIMEOUT",
    "PIP_TRUSTED_HOST",
    "UV_*INDEX*",
    "UV_*TIMEOUT",
    "UV_INSECURE_HOST",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
)


class Unavailable(Exception):
    """This system cannot make a minimal Debian."""


class Machine:
    """A copy of the minimal Debian with a clone; `run` runs commands in it, one after the other."""

    def __init__(self, root: Path, *, user: bool) -> None:
        self.root = root
        self._user = USER if user else "root"
        self._home = Path("home", USER) if user else Path("root")
        self._configure()
        if user:
            self._add_user()
        self._clone()

    def run(self, *command: str, stdout: int | None = None) -> int:
        """Run a command in the clone; return its exit code. No process that it started outlives it."""
        return enter(self.root, self._user, self._home, self._home / "statehold", *command, stdout=stdout)

    def _configure(self) -> None:
        """Give it this machine's ways to package mirrors, and nothing else."""
        for name in SYSTEM_FILES:
            copy(Path("/", name), self.root / name)
        for name in HOME_FILES:
            copy(Path.home() / name, self.root / self._home / name)
        for value in filter(None, map(os.environ.get, CERTIFICATES)):
            copy(Path(value), self.root / value.lstrip("/"))
        apt = self.root / "etc/apt"
        if sources := apt_sources():
            lines = [f"deb {uri} {suite} main\n" for uri, suite in sources]
            (apt / "sources.list").write_text("".join(lines), encoding="utf-8")
        (apt / "apt.conf.d/99machine").write_text(apt_settings(), encoding="utf-8")

    def _add_user(self) -> None:
        """A user without root, on a system where an administrator has installed Python's venv."""
        script = f"useradd --create-home {USER} && apt-get -q update && apt-get -q install -y python3-venv"
        if enter(self.root, "root", Path("root"), Path("root"), "sh", "-c", script, stdout=subprocess.DEVNULL) != 0:
            raise Unavailable("apt-get cannot install python3-venv in it; is there a network?")

    def _clone(self) -> None:
        target = self.root / self._home / "statehold"
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, target], check=True, stdout=sys.stderr)
        if self._user != "root":
            subprocess.run(["chroot", self.root, "chown", "-R", f"{USER}:", f"/{self._home}"], check=True)


@contextmanager
def machine(*, user: bool = False) -> Iterator[Machine]:
    """Make a machine, and remove it at the end. Raises `Unavailable`."""
    require_namespaces()
    home = cache_root() / "bare"
    with one_at_a_time(home):
        original = minimal_debian(home)
        for left in home.glob("run-*"):
            if (lock := locked(left)) is not None:  # its run was killed
                remove(left)
                os.close(lock)
        root = Path(tempfile.mkdtemp(prefix="run-", dir=home))
        lock = locked(root)
        assert lock is not None
    try:
        # cp, because shutil keeps no owners
        subprocess.run(["cp", "-a", "--reflink=auto", f"{original}/.", root], check=True)
        yield Machine(root, user=user)
    finally:
        remove(root)
        os.close(lock)


def locked(directory: Path) -> int | None:
    """Lock a directory until the handle is closed or this process ends; None if another has it."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def copy(source: Path, target: Path) -> None:
    """Replace `target` by a copy of a file or folder of this machine, if that exists."""
    if not source.exists():
        return
    remove(target)  # a link in it would lead into this machine's files
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore_dangling_symlinks=True)
    else:
        shutil.copy(source, target)


def remove(tree: Path) -> None:
    """Remove a tree. Mounts were private to a namespace that has ended, so none is below it."""
    subprocess.run(["rm", "-rf", "--one-file-system", tree], check=True)


def require_namespaces() -> None:
    """Raise `Unavailable` where no machine can be made."""
    if os.geteuid() != 0:
        raise Unavailable("only root can make one")
    tried = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        raise Unavailable("this system makes no namespaces; a container needs privileges for them")


def minimal_debian(home: Path) -> Path:
    """Return the minimal Debian in this folder; make it if it is missing or a week old. Raises `Unavailable`."""
    made = home / RELEASE
    if made.exists() and time.time() - made.stat().st_mtime < KEPT:
        return made
    for left in home.glob(f".{RELEASE}-*"):
        remove(left)
    work = Path(tempfile.mkdtemp(prefix=f".{RELEASE}-", dir=home))
    try:
        debootstrap(work)
        remove(made)
        os.utime(work)
        work.rename(made)
    finally:
        remove(work)
    return made


def debootstrap(target: Path) -> None:
    """Make a minimal Debian, from this machine's mirror if it has one of that release."""
    if shutil.which("debootstrap") is None and not (
        shutil.which("apt-get") and apt_get("update") and apt_get("install", "-y", "debootstrap")
    ):
        raise Unavailable("debootstrap is missing and cannot be installed")
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(target)]
    mirrors = [uri for uri, suite in apt_sources() if suite == RELEASE]
    sys.stderr.write(f"bare: making a minimal Debian {RELEASE} by debootstrap\n")
    done = subprocess.run([*command, *mirrors[:1]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"debootstrap failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    target.chmod(0o755)


def apt_sources() -> list[tuple[str, str]]:
    """Return the address and suite of each of this machine's sources of Debian's release."""
    if shutil.which("apt-get") is None:
        return []
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    suites = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
    return [(uri, suite) for uri, suite, component in rows if component == "main" and suite in suites]


def apt_settings() -> str:
    """Return this machine's settings of downloads: proxies, time-outs, checks."""
    if shutil.which("apt-config") is None:
        return ""
    dumped = subprocess.run(["apt-config", "dump", "Acquire"], stdout=subprocess.PIPE, text=True, check=False).stdout
    return "".join(line for line in dumped.splitlines(keepends=True) if re.match(r"Acquire::(https?|ftp|Check-)", line))


def enter(root: Path, user: str, home: Path, directory: Path, *command: str, stdout: int | None = None) -> int:
    """Run a command in the tree `root`, in namespaces that end with this process; return its exit code."""
    passed = [name for name in os.environ if any(fnmatchcase(name, pattern) for pattern in VARIABLES)]
    namespaces = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
    first = [sys.executable, "-m", "script.bare", "--inside", str(root), user, f"/{directory}"]
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *namespaces, *first, *command],
        cwd=ROOT,
        env={"PATH": PATH, "HOME": f"/{home}", **{name: os.environ[name] for name in passed}},
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
    )
    try:
        return process.wait()
    finally:
        process.kill()
        process.wait()


def inside(root: str, user: str, directory: str, *command: str) -> int:
    """Run the command in a new process; this one is the first of its namespace, so it must collect orphans.

    The kernel kills all others when it ends.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # the command gets it, too
    subprocess.run(["hostname", HOST_NAME], check=True)
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("--rbind", "/dev", f"{root}/dev")
    mount("--rbind", "/sys", f"{root}/sys")
    mount("-t", "tmpfs", "tmpfs", f"{root}/dev/shm")  # noqa: S108 - the machine's own
    without = ["env", "-u", "LC_CTYPE"]  # this interpreter has set it
    started = subprocess.Popen(["chroot", f"--userspec={user}:", root, *without, "-C", directory, *command])
    while True:
        pid, status = os.wait()
        if pid == started.pid:
            return os.waitstatus_to_exitcode(status)


def mount(*arguments: str) -> None:
    """Mount in this process's namespace."""
    subprocess.run(["mount", *arguments], check=True)


def main(arguments: list[str]) -> int:
    """Run the command in a new machine; return its exit code."""
    if arguments[:1] == ["--inside"]:
        return inside(*arguments[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    user = arguments[:1] == ["--user"]
    try:
        with machine(user=user) as made:
            return made.run(*(arguments[user:] or ["sh"]))
    except Unavailable as error:
        sys.stderr.write(f"bare: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
