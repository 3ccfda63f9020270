"""Hosts for brokers: network namespaces on a bridge, between which packets can be dropped silently.

Needs root. Neighbour entries that name no host do what a firewall or a dead switch does (no answer, no reset), for one
direction between two hosts and without a kernel module. `tests.support.cable` adds loss and delay in user space,
because many kernels lack netem.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

#: the test's own host: on the bridge, in the namespace of the test run
HERE = 0
_NO_HOST = "02:00:00:00:de:ad"
#: names begin with the maker's pid; then a letter that is no hexadecimal digit
_LETTERS = itertools.cycle("ghijklmnopqrstuvwxyz")
_OURS = re.compile(r"^(sh([0-9a-f]+)[g-z]b)\s", re.MULTILINE)
_SPACE = re.compile(r"^(sh([0-9a-f]+)[g-z]n\d+)\b", re.MULTILINE)
_CABLE = Path(__file__).with_name("cable.py")


def run(*command: str) -> str:
    """Run `ip`; raise RuntimeError with its error."""
    done = subprocess.run(["ip", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def sweep() -> None:
    """Remove the namespaces and bridges of test processes that were killed."""
    for name, maker in _OURS.findall(run("-br", "link")):
        if not Path("/proc", str(int(maker, 16))).exists():
            run("link", "del", name)
    for name, maker in _SPACE.findall(run("netns")):
        if not Path("/proc", str(int(maker, 16))).exists():
            run("netns", "del", name)


class Net:
    """Hosts 1 to `count`, each with an address, and the test itself as host 0. Removed by `close`."""

    def __init__(self, count: int) -> None:
        self._name = f"sh{os.getpid():x}{next(_LETTERS)}"
        self._subnet = f"10.{random.randrange(64, 128)}.{random.randrange(1, 255)}"
        self._hosts = range(1, count + 1)
        self._dropped: set[tuple[int, int]] = set()
        self._cables: dict[int, subprocess.Popen[bytes]] = {}
        self._bridge = f"{self._name}b"
        try:
            sweep()
            self._make()
        except (RuntimeError, FileNotFoundError) as error:
            self.close()
            pytest.skip(f"no network namespaces here: {error}")

    def _make(self) -> None:
        if f" {self._subnet}." in run("-4", "addr"):
            raise RuntimeError(f"{self._subnet}.0/24 is in use")
        run("link", "add", self._bridge, "type", "bridge")
        run("addr", "add", f"{self.address(HERE)}/24", "dev", self._bridge)
        run("link", "set", self._bridge, "up")
        for host in self._hosts:
            space, port = self.space(host), self._port(host)
            run("netns", "add", space)
            run("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("link", "set", port, "master", self._bridge, "up")
            run("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("-n", space, "link", "set", device, "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def address(self, host: int) -> str:
        return f"{self._subnet}.{host + 1}"

    def space(self, host: int) -> str:
        """Return the namespace's name, for `ip netns exec`."""
        return f"{self._name}n{host}"

    # Faults

    def drop(self, source: int, target: int) -> None:
        """Drop what `source` sends to `target`; neither of them gets an error."""
        self._neighbour(source, target, "replace", "lladdr", _NO_HOST, "nud", "permanent")
        self._dropped.add((source, target))

    def pass_on(self, source: int, target: int) -> None:
        """Undo `drop`."""
        if (source, target) in self._dropped:
            self._neighbour(source, target, "del")
            self._dropped.discard((source, target))

    def cut(self, host: int, others: Iterable[int] | None = None) -> None:
        """Drop both directions between one host and all others (also the test's own) or some."""
        for other in self._others(host) if others is None else others:
            self.drop(host, other)
            self.drop(other, host)

    def heal(self) -> None:
        """Undo every `drop`."""
        for source, target in list(self._dropped):
            self.pass_on(source, target)

    def unplug(self, host: int) -> None:
        """Set the link down: neighbours fail after seconds, so that senders get 'no route to host'."""
        run("link", "set", self._port(host), "down")

    def plug(self, host: int) -> None:
        run("link", "set", self._port(host), "up")

    def bad_cable(self, host: int, *, loss: float = 0.0, delay: float = 0.0) -> None:
        """Lose each packet of this host with probability `loss`, and delay the others by `delay` seconds."""
        near, far = f"{self._name}x{host}", f"{self._name}y{host}"
        run("link", "add", near, "type", "veth", "peer", "name", far)
        run("link", "set", far, "master", self._bridge, "up")
        run("link", "set", near, "up")
        run("link", "set", self._port(host), "nomaster")
        command = [sys.executable, str(_CABLE), self._port(host), near, str(loss), str(delay)]
        self._cables[host] = subprocess.Popen(command, stdin=subprocess.PIPE)

    def good_cable(self, host: int) -> None:
        """Undo `bad_cable`."""
        cable = self._cables.pop(host)
        cable.kill()
        cable.communicate()
        run("link", "set", self._port(host), "master", self._bridge)
        run("link", "del", f"{self._name}x{host}")

    # Inside

    def close(self) -> None:
        for host in list(self._cables):
            self.good_cable(host)
        with contextlib.suppress(RuntimeError, FileNotFoundError):
            run("link", "del", self._bridge)
        for host in self._hosts:
            for command in (("netns", "del", self.space(host)), ("link", "del", self._port(host))):
                with contextlib.suppress(RuntimeError, FileNotFoundError):
                    run(*command)

    def _others(self, host: int) -> list[int]:
        return [other for other in (HERE, *self._hosts) if other != host]

    def _port(self, host: int) -> str:
        return f"{self._name}p{host}"

    def _neighbour(self, source: int, target: int, action: str, *what: str) -> None:
        where = () if source == HERE else ("-n", self.space(source))
        device = self._bridge if source == HERE else "eth0"
        run(*where, "neigh", action, self.address(target), *what, "dev", device)
