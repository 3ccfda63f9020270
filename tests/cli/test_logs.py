"""What `statehold run` writes: order, levels, time, exceptions, librdkafka's lines, other libraries' lines."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from statehold.config.sections.service import LogSettings
from statehold.ops.process.librdkafka_log import KafkaLines, split
from statehold.ops.process.logs import configure_logging, configure_quietly
from statehold.telemetry.log_events import Log
from statehold.testing.memory.clock import ManualClock

REFUSED = (
    "FAIL [rdkafka#producer-{n}] [thrd:127.0.0.1:9092/bootstrap]: 127.0.0.1:9092/bootstrap: "
    "Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after {n}ms in state CONNECT)"
)
LOGGED = (
    "_TRANSPORT(-195): GroupCoordinator: 127.0.0.1:9092: "
    "Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)"
)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """`configure_logging` changes the whole process: this one belongs to pytest."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    logging.captureWarnings(capture=False)
    root.handlers, root.level = handlers, level
    sys.excepthook, threading.excepthook = hooks
    structlog.reset_defaults()


class Written(io.StringIO):
    """A stream that remembers, and reads back what was written as JSON."""

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


def configured(level: Any = "info", form: Any = "json") -> Written:
    written = Written()
    configure_logging(LogSettings(level=level, format=form), written)
    return written


def test_a_line_begins_with_what_and_when() -> None:
    written = configured()

    Log(service="clearing").info("live", partition=3, position=17, cause=None)

    event = written.events()[0]
    assert list(event) == ["event", "timestamp", "level", "service", "partition", "position", "cause"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["timestamp"])
    assert (event["event"], event["level"], event["cause"]) == ("live", "info", None)


def test_less_severe_than_the_setting_is_left_out() -> None:
    written = configured("warning")

    Log().info("live")
    Log().warning("lost")

    assert [event["event"] for event in written.events()] == ["lost"]


def test_a_command_that_ends_by_itself_is_quiet() -> None:
    written = Written()
    configure_quietly(LogSettings(format="json"), written)

    Log().warning("kafka_retry")
    Log().error("failed")

    assert [event["event"] for event in written.events()] == ["failed"]


def test_exceptions_are_text() -> None:
    written = configured()

    try:
        json.loads("{}")["account"]
    except KeyError as error:
        Log().error("failed", exc_info=error)

    logged = written.events()[0]["exception"]
    assert logged.startswith("Traceback")
    assert logged.endswith("KeyError: 'account'")


def test_what_json_does_not_know_is_written_as_text() -> None:
    written = configured()

    Log().info("assigned", partitions={1}, number=2**80)

    assert written.events()[0]["partitions"] == "{1}"
    assert written.events()[0]["number"] == 2**80


def test_the_console_form_is_one_line_without_empty_fields() -> None:
    written = configured(form="console")

    Log().info("stopped", cause=None, service="clearing")

    assert re.fullmatch(r"\S+Z \[info     \] stopped +service=clearing\n", written.getvalue())


def test_a_terminal_gets_the_console_form_and_a_pipe_json() -> None:
    class Terminal(Written):
        def isatty(self) -> bool:
            return True

    for stream, is_json in ((Terminal(), False), (Written(), True)):
        configure_logging(LogSettings(), stream)
        Log().info("live")
        assert stream.getvalue().startswith("{") == is_json


def test_a_closed_output_does_not_stop_the_service() -> None:
    written = configured()
    written.close()

    Log().error("failed")


def test_the_standard_library_goes_the_same_way() -> None:
    written = configured()

    logging.getLogger("my.handler").warning("odd lot: %s", 7)
    logging.getLogger("my.handler").debug("no")

    (event,) = written.events()
    assert (event["event"], event["level"], event["logger"]) == ("odd lot: 7", "warning", "my.handler")


def test_a_thread_that_dies_is_seen() -> None:
    written = configured()

    def die() -> None:
        raise RuntimeError("out of luck")

    thread = threading.Thread(target=die, name="mine")
    thread.start()
    thread.join()

    (event,) = written.events()
    assert (event["event"], event["thread"], event["cause"]) == ("thread_died", "mine", "out of luck")
    assert "RuntimeError: out of luck" in event["exception"]


# librdkafka's lines


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def report(clock: ManualClock) -> Callable[[str, str], dict[str, Any] | None]:
    """Give a line to the processor; None when it is left out."""
    lines = KafkaLines(every=10, clock=clock)

    def logged(level: str, message: str) -> dict[str, Any] | None:
        try:
            return dict(lines(None, "debug", {"event": "kafka_log", "level": level, "message": message}))
        except structlog.DropEvent:
            return None

    return logged


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("critical", "error"), ("error", "warning"), ("warning", "warning"), ("info", "debug"), ("debug", "debug")],
)
def test_levels_are_an_operators(report: Callable[..., Any], theirs: str, ours: str) -> None:
    assert report(theirs, "GETPID [rdkafka#producer-4] [thrd:main]: no answer")["level"] == ours


@pytest.mark.parametrize(
    ("name", "ours"), [("ILLEGAL_GENERATION", "debug"), ("UNKNOWN_MEMBER_ID", "debug"), ("_TIMED_OUT", "warning")]
)
def test_a_transaction_that_a_rebalance_overtakes_is_no_warning(
    report: Callable[..., Any], name: str, ours: str
) -> None:
    text = (
        f"Failed to commit offsets to transaction on broker 10.0.0.1:9092/1: (after 3ms) ({name}, requires epoch bump)"
    )
    line = f"TXNERR [a#producer-4] [thrd:main]: Current transaction failed in state InTransaction: {text}"
    assert report("error", line)["level"] == ours


def test_a_line_is_split_into_code_and_text() -> None:
    assert split("GETPID [vm#producer-4] [thrd:main]: Failed: retrying") == ("GETPID", "Failed: retrying")
    assert split("_ALL_BROKERS_DOWN(-187): 1/1 brokers are down") == ("_ALL_BROKERS_DOWN", "1/1 brokers are down")
    assert split("something else") == ("", "something else")


def test_a_fault_that_many_clients_report_is_logged_once(report: Callable[..., Any], clock: ManualClock) -> None:
    first = report("error", REFUSED.format(n=1))
    assert first["code"] == "FAIL"
    assert first["message"].startswith("127.0.0.1:9092/bootstrap: Connect to")

    assert [report("error", REFUSED.format(n=n)) for n in range(2, 50)] == [None] * 48
    assert report("error", LOGGED) is None, "error_cb says the same again"

    clock.advance(10)
    assert report("error", REFUSED.format(n=1))["left_out"] == 49


def test_another_broker_and_another_fault_are_logged(report: Callable[..., Any]) -> None:
    assert report("error", REFUSED.format(n=1)) is not None
    assert report("error", REFUSED.format(n=1).replace("127.0.0.1", "10.0.0.2")) is not None
    assert report("error", "_ALL_BROKERS_DOWN(-187): 1/1 brokers are down") is not None


def test_at_debug_every_line_is_logged(report: Callable[..., Any]) -> None:
    assert all(report("info", REFUSED.format(n=1)) for _ in range(5))


def test_trouble_with_a_broker_is_seen_at_info() -> None:
    written = configured()

    for level in ("info", "error"):
        Log(service="clearing").debug("kafka_log", client="producer", level=level, message=REFUSED.format(n=1))

    (event,) = written.events()
    assert (event["event"], event["level"], event["client"]) == ("kafka_log", "warning", "producer")


def test_a_field_called_level_is_a_fields_own_business_elsewhere() -> None:
    written = configured()

    structlog.get_logger().info("book", level=3)

    assert written.events()[0]["level"] == "info"
