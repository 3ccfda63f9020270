"""How a process ends when a part of it dies: seen, logged once with its cause, with a code a supervisor acts on.

The parts are broken inside the process, by the module that holds the service; nothing of this is in the product.
"""

from __future__ import annotations

import pytest
from tests.cli.commands import APP, Commands, wait_until

from statehold.common.exit_codes import MEANINGS, Exit

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

#: broken from the moment on at which the file `break` is there
BREAK = """
import threading
from pathlib import Path
from statehold.balancer.manager import Manager
from statehold.kafka.clients.consumer import KafkaGroupConsumer
from statehold.errors import KafkaTrouble

def breaking(owner, name, error, always=False):
    whole = getattr(owner, name)
    def broken(*args, **kwargs):
        if always or Path("break").exists():
            raise error
        return whole(*args, **kwargs)
    setattr(owner, name, broken)
"""
#: what is broken -> the code for it, the thread that dies, a part of the cause
PARTS = {
    "manager": ('breaking(Manager, "_collect", RuntimeError("odd lot"))', "manager", "RuntimeError: odd lot"),
    "callback": ('breaking(Manager, "on_assign", RuntimeError("odd lot"), True)', "manager", "RuntimeError: odd lot"),
    "consumer": (
        'breaking(KafkaGroupConsumer, "consume", KafkaTrouble("the consumer cannot go on: odd lot"))',
        "manager",
        "the consumer cannot go on: odd lot",
    ),
}


@pytest.mark.parametrize(
    "part",
    ["manager", pytest.param("callback", marks=pytest.mark.long), pytest.param("consumer", marks=pytest.mark.long)],
)
def test_a_dead_manager_thread_ends_the_process(on_kafka: Commands, part: str) -> None:
    code, thread, cause = PARTS[part]
    on_kafka.write_app(f"{BREAK}\n{code}\n{APP}")
    on_kafka.create_topics(1)
    daemon = on_kafka.start()
    if part != "callback":
        daemon.wait_for("live")
    (on_kafka.directory / "break").touch()

    ended = Exit(daemon.process.wait(60))
    assert MEANINGS[ended][1], f"a supervisor would not start it again after {ended!r}"
    (died,) = daemon.events("thread_died")
    assert (died["thread"], cause in died["cause"]) == (thread, True)


def test_a_handler_that_exits_is_no_clean_stop(on_kafka: Commands) -> None:
    """`sys.exit(0)` in a handler ends its thread, not only its record: it must not look like a clean stop."""
    on_kafka.write_app(APP.replace('raise ValueError("odd lot")', "raise SystemExit(0)"))
    on_kafka.create_topics(2)
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)
    on_kafka.feed("poison", partition=0)

    ended = Exit(daemon.process.wait(60))
    assert MEANINGS[ended][1], f"a supervisor would not start it again after {ended!r}"
    (died,) = daemon.events("thread_died")
    assert "SystemExit" in died["cause"]


@pytest.mark.long
def test_a_memory_error_fails_one_partition(on_kafka: Commands) -> None:
    on_kafka.write_app(APP.replace('raise ValueError("odd lot")', 'raise MemoryError("no room")'))
    on_kafka.create_topics(2)
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)
    on_kafka.feed("poison", partition=0)
    assert "MemoryError: no room" in daemon.wait_for("failed")["cause"]

    (on_kafka.directory / "fixed").touch()
    on_kafka.run("retry", "0", "--name", on_kafka.name)
    daemon.wait_for("live", 3)
    assert daemon.stop() == Exit.STOPPED
    assert not daemon.events("thread_died")


@pytest.mark.long
def test_a_second_sigterm_changes_nothing(on_kafka: Commands) -> None:
    on_kafka.create_topics(2)
    daemon = on_kafka.start()
    daemon.wait_for("live", 2)
    daemon.process.terminate()
    daemon.process.terminate()
    wait_until(lambda: daemon.process.poll() is not None, "the end")
    assert daemon.process.returncode == Exit.STOPPED
    assert len(daemon.events("stopped")) == 1
    assert len(daemon.events("drained")) == 2
