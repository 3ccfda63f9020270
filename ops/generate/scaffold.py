"""Generates the files of a new service with a passing test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from statehold.common.version import __version__
from statehold.errors import UsageError

_APP: Final = '''\
"""{name}: counts events by key, and sends each new count."""

import msgspec

from statehold import Handler, Output, Record, Service, Table


class Event(msgspec.Struct, frozen=True):
    """One record of the input, as JSON."""

    amount: int


class Total(msgspec.Struct, frozen=True):
    """The state of a key, and the output after each event."""

    events: int = 0
    amount: int = 0


class Totals(Handler[Event]):
    """One instance for each partition; its table is there again after a crash, with every event in it once."""

    totals = Table(key=str, value=Total)
    updates = Output("{name}.totals", value=Total)

    def on_record(self, record: Record[Event]) -> None:
        key = (record.key or b"").decode()
        before = self.totals.get(key, Total())
        after = Total(before.events + 1, before.amount + record.value.amount)
        self.totals[key] = after
        self.updates.send(after, key=key)


service = Service("{name}", input="{name}.events", handler=Totals)
'''
_TEST: Final = '''\
"""The handler without Kafka: statehold.testing.Driver runs the worker's own code on the calling thread."""

from {module}.app import Event, Total, Totals

from statehold.testing import Driver


def test_totals_are_kept_by_key() -> None:
    driver = Driver(Totals)
    driver.feed(Event(3), key="ann")
    driver.feed(Event(4), key="bob")
    driver.feed(Event(5), key="ann")

    assert driver.outputs("{name}.totals") == [Total(1, 3), Total(1, 4), Total(2, 8)]


def test_a_crash_loses_nothing_and_counts_nothing_twice() -> None:
    driver = Driver(Totals)
    driver.feed(Event(3), key="ann")
    driver.commit()
    driver.crash()
    driver.restore()
    driver.feed(Event(5), key="ann")

    assert driver.table("totals")["ann"] == Total(2, 8)
'''
_CONFIG: Final = """\
# Settings of {name}; `statehold config show -c {name}.toml` shows all of them, docs/settings.md explains them.

[kafka]
bootstrap_servers = "127.0.0.1:9092"    # name at least two of a real cluster

[service]
mode = "development"                    # production refuses what is unsafe; `--profile production` sets more

[doctor]
at_start = "warn"                       # logs problems before they cause an outage
"""
_UNIT: Final = """\
# /etc/systemd/system/{name}.service: one instance of {name}; the code lies in /srv/{name}, statehold in /opt/statehold.
# Several instances: `statehold deploy systemd` writes their units.
[Unit]
Description={name}
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=60
ExecStart=/opt/statehold/bin/statehold run {module}.app:service --profile production --config /srv/{name}/{name}.toml
WorkingDirectory=/srv/{name}
DynamicUser=true
# Where `statehold status` looks for its socket.
RuntimeDirectory=statehold
RuntimeDirectoryPreserve=yes
# 2 and 5: something must be changed first, a new start would end the same way (docs/cli.md, exit codes).
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=2 5 130
RestartForceExitStatus=SIGHUP SIGPIPE
# service.stop_timeout is 25 s: it commits, takes its full snapshots and leaves the group within that.
TimeoutStopSec=40
LimitNOFILE=65536
NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=true
PrivateTmp=true

[Install]
WantedBy=multi-user.target
"""
_DOCKERFILE: Final = """\
# docker build -t {name} . && docker run --stop-timeout 40 {name}
FROM python:3.12-slim
WORKDIR /srv/{name}
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY {module} {module}
COPY {name}.toml .
USER 65534
# SIGTERM reaches statehold itself: no shell in between.
STOPSIGNAL SIGTERM
ENTRYPOINT ["statehold", "run", "{module}.app:service", "--profile", "production", "--config", "{name}.toml", "--json"]
"""
_README: Final = """\
# {name}

```sh
python -m pytest
statehold dev up                                 # Kafka on this machine; `statehold dev down` stops it
statehold topics create {module}.app:service --start-at beginning --partitions 4
statehold run {module}.app:service -c {name}.toml   # until Ctrl-C; the rest in another terminal
```

```sh
python - <<'END'
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:9092", "partitioner": "murmur2_random"})  # as Java's
for amount in range(10):
    producer.produce("{name}.events", '{"amount": %d}' % amount, key="ann")
producer.flush()
END
statehold cat {name}.totals --service {module}.app:service
statehold top {module}.app:service -c {name}.toml
statehold doctor {module}.app:service -c {name}.toml
```
"""


def files(name: str) -> dict[str, str]:
    """Return the content of every file of a new service.

    :raises UsageError: the name is invalid.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UsageError(f"{name!r}: use small letters, digits and single '-', such as order-totals")
    module = name.replace("-", "_")
    templates = {
        f"{module}/__init__.py": "",
        f"{module}/app.py": _APP,
        "tests/test_app.py": _TEST,
        "conftest.py": '"""Marks the root, so that tests find the package."""\n',
        f"{name}.toml": _CONFIG,
        f"deploy/{name}.service": _UNIT,
        "Dockerfile": _DOCKERFILE,
        "requirements.txt": f"statehold[cli]=={__version__}\n",
        "README.md": _README,
    }
    return {path: text.replace("{name}", name).replace("{module}", module) for path, text in templates.items()}


def write(name: str, directory: Path) -> list[Path]:
    """Write the files to `directory`; return their paths.

    :raises UsageError: the directory is not empty, or cannot be written.
    """
    made = files(name)
    try:
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; nothing was written. Choose another with --to")
        for path, text in made.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error
    return [directory / path for path in made]
