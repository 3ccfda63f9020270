"""`statehold shadow`: runs new code in parallel to the running service, and compares what both do."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Annotated, Final

import typer

from statehold.admin.inspection.topic_view import topic_view
from statehold.common.exit_codes import Answer
from statehold.common.names import Names
from statehold.config.common.units import format_duration
from statehold.config.settings import Settings
from statehold.errors import StartError
from statehold.ops.cli.common import output, waiting
from statehold.ops.cli.common.output import AsJson, WrongOption
from statehold.ops.cli.common.subject import Subject, with_subject
from statehold.ops.cli.common.target import Partitions, partitions_of
from statehold.ops.cli.release.rehearse import Ignored, Shown, print_example, print_partition, seconds_of
from statehold.ops.http.answers import HttpAnswer, HttpRequest, as_json
from statehold.ops.http.small_server import Route, small_server
from statehold.ops.process.shadow_metrics import ShadowMetrics
from statehold.ops.process.shadow_page import ShadowPage
from statehold.rehearsal.source import LiveTopics
from statehold.shadow.report import ShadowedPartition, ShadowReport, ShadowVerdict
from statehold.shadow.shadow import Shadow

_CODES: Final[dict[ShadowVerdict, Answer]] = {
    "equal": Answer.YES,
    "different": Answer.DIFFERENT,
    "unreadable": Answer.UNREADABLE,
    "incomplete": Answer.NO,
}
_SAID: Final[dict[ShadowVerdict, str]] = {
    "equal": "EQUAL: the new code did the same as the running service",
    "different": "DIFFERENT: the new code does something else than the running service. Nothing was changed",
    "unreadable": (
        "UNREADABLE: the new code cannot take over the stored state. Nothing was changed. Next: change it as "
        "the errors say, or run the code that wrote the state"
    ),
    "incomplete": (
        "INCOMPLETE: the service handled no record meanwhile, or a partition could not be followed. Next: look whether "
        "the service runs, with `statehold lag`"
    ),
}
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@with_subject
def shadow(
    about: Subject,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="End after this time, such as 24h. [default: Ctrl-C]")
    ] = None,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="Report after each such time.")] = "1m",
    ignore: Ignored = None,
    examples: Shown = 3,
    partitions: Partitions = None,
    as_json: AsJson = False,
) -> None:
    """Run the next release in parallel to the running service, and compare what both do.

    statehold shadow order_totals.app:service --for 24h

    It follows the topics of the service, hands the code named here the records that the service has handled, and
    compares outputs, tables, timers, dead letters and side effects with what the service committed. It writes nothing
    to Kafka and joins no group. Metrics are where `ops.listen` says. Ctrl-C ends it with a report.

    Exit code 0: equal; 4: results differ; 5: the code cannot take over the stored state; 1: no record was compared.
    """
    if about.service is None:
        raise WrongOption("a shadow needs the new code: name it as module:service")
    most, each = seconds_of("--for", for_), seconds_of("--every", every)
    end, stop = time.monotonic() + most if most else None, threading.Event()

    def ended() -> bool:
        return stop.is_set() or (end is not None and time.monotonic() >= end)

    def pause(seconds: float) -> None:
        stop.wait(seconds if end is None else min(seconds, max(0.0, end - time.monotonic())))

    with _stopped_by_signals(stop), topic_view(about.settings, about.names) as view:
        numbers = view.numbers(partitions_of(partitions))
        source = LiveTopics(view, ended)
        made = Shadow(source, about.service.handler, numbers, about.settings, ignore or (), examples, ended)
        printer = _Printer(made, each, as_json=as_json)
        waiting.hush()
        with _served(about.settings, made, about.names):
            made.run(pause, printer.look)
    report = made.report(ended=True)
    printer.end(report)
    raise typer.Exit(_CODES[report.verdict])


class _Printer:
    """Prints differences when they are found, and a line about the progress now and then."""

    def __init__(self, made: Shadow, every: float, *, as_json: bool) -> None:
        self._made, self._every, self._as_json = made, every, as_json
        self._due = time.monotonic() + every
        #: by partition: examples and notes that were printed, and the last phase
        self._examples: dict[int, int] = {}
        self._states: dict[int, tuple[str, str]] = {}

    def look(self) -> None:
        report = self._made.report()
        if not self._as_json:
            for each in report.partitions:
                self._changed(each)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            if self._as_json:
                output.print_json(report)
            else:
                output.report(_progress(report))

    def end(self, report: ShadowReport) -> None:
        if self._as_json:
            output.print_json(report)
            return
        for each in report.partitions:
            print_partition(each, examples=False)
            if each.phase != "following":
                output.report(f"  {each.phase}: {each.why}")
        for each in report.partitions:
            self._print_examples(each)
        for field, count in report.ignored.items():
            output.report(f"--ignore {field}: {count} otherwise equal")
        output.report(_SAID[report.verdict])

    def _changed(self, found: ShadowedPartition) -> None:
        before, now = self._states.get(found.partition), (found.phase, found.why)
        if now != before:
            self._states[found.partition] = now
            where = f"partition {found.partition}"
            if found.phase == "following":
                again = "" if before is None or not found.records else " again"
                output.report(
                    f"{where}: follows{again} from transaction {found.to_n} (position {found.end}): "
                    f"{found.keys} keys read"
                )
            elif found.why:
                output.complain(f"{where}: {found.phase}: {found.why}")
        self._print_examples(found)

    def _print_examples(self, found: ShadowedPartition) -> None:
        for example in found.examples[self._examples.get(found.partition, 0) :]:
            print_example(example)
        self._examples[found.partition] = len(found.examples)


def _progress(report: ShadowReport) -> str:
    behind = ", ".join(
        f"partition {each.partition}: "
        + (f"{each.age:.1f} s behind" if each.phase == "following" and each.age >= 0 else each.phase)
        for each in report.partitions
    )
    spent = format_duration(round(report.seconds))
    return f"after {spent}: {report.records} records compared, {report.differ} results differ; {behind}"


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the shadow with its report; a second one ends the process at once."""

    def end(number: int, _frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    if threading.current_thread() is not threading.main_thread():  # a program calls the command
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def routes_of(settings: Settings, made: Shadow, names: Names) -> dict[str, Route]:
    """Return what the shadow's server answers: page, report and metrics."""
    metrics = ShadowMetrics(names.service, made.report)

    def exposed(request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(200, *metrics.exposition(request.headers.get("accept", "")))

    def ready(_: HttpRequest) -> HttpAnswer:
        """Say which partitions do not follow, to anyone; why, which may quote keys and values, is in /report."""
        wrong = [each for each in made.report().partitions if each.phase != "following"]
        why = "; ".join(f"partition {each.partition}: {each.phase}" for each in wrong)
        return as_json({"ready": not wrong, "why": why}, 503 if wrong else 200)

    return {
        "/metrics": exposed,
        "/live": lambda _: as_json({"live": True}),
        "/ready": ready,
        **ShadowPage(settings.ops, names, made.report).routes(),
    }


@contextmanager
def _served(settings: Settings, made: Shadow, names: Names) -> Iterator[None]:
    """Serve page, report and metrics; continue without them, because the comparison does not need them."""
    routes = routes_of(settings, made, names)
    with ExitStack() as stack:
        try:
            if url := stack.enter_context(small_server(settings.ops, routes, f"shadow-{names.service}")):
                output.complain(f"metrics: {url}/metrics, report: {url}/report, page: {url}/")
        except StartError as error:
            output.complain(f"{error}. The shadow runs without metrics. Next: set ops.listen to a free address or off")
        yield
