"""The commands of `statehold`: each is in a module of its own and has its line here."""

from __future__ import annotations

from typing import Annotated, ClassVar

import typer

from statehold.common.version import __version__
from statehold.ops.cli.lazy_commands import CommandEntry, LazyGroup


class _Commands(LazyGroup):
    panels: ClassVar = {
        "Create and run": (
            CommandEntry("new", "service.new:new", "Create a service that runs: handler, test, settings, unit, image."),
            CommandEntry("dev", "service.dev:app", "Run a real Kafka on this machine, for development."),
            CommandEntry(
                "topics", "topics.topics:app", "Create and check the topics of a service; print its access rights."
            ),
            CommandEntry("run", "service.run:run", "Run a service until SIGTERM or SIGINT."),
            CommandEntry("config", "inspect.config:app", "Show the settings in force and where each was written."),
            CommandEntry("schema", "inspect.schema:schema", "Print a service's topics and value types as JSON."),
            CommandEntry("deploy", "service.deploy:app", "Write the systemd units that run a service."),
        ),
        "Observe": (
            CommandEntry("status", "inspect.status:status", "Show the partitions of running services."),
            CommandEntry("top", "inspect.top:top", "Watch a service on the whole screen, as `top` does processes."),
            CommandEntry("lag", "inspect.lag:lag", "Show how far each partition is behind."),
            CommandEntry("doctor", "inspect.doctor:doctor", "Find problems before they cause an outage, with the fix."),
            CommandEntry(
                "explain", "inspect.explain:explain", "Explain an error, alert, log event or exit code: what to do."
            ),
            CommandEntry("cat", "inspect.cat:cat", "Print the committed records of a topic as JSON lines."),
            CommandEntry(
                "support-bundle",
                "inspect.support:support_bundle",
                "Write one file for support, without secrets or records.",
            ),
        ),
        "Control a running service": (
            CommandEntry("retry", "service.retry:retry", "Retry failed partitions."),
            CommandEntry("dlq", "topics.dlq:app", "List, redrive and discard dead letters: records that failed."),
            CommandEntry("calls", "service.calls:app", "List durable calls; retry, discard or fail some."),
            CommandEntry("command", "service.command:command", "Send a command to every partition, in input order."),
            CommandEntry("pause", "service.pause:pause", "Pause partitions: they commit, and read no more."),
            CommandEntry("resume", "service.pause:resume", "Resume paused partitions."),
            CommandEntry("drain", "service.drain:drain", "Stop a process and hand its partitions over at once."),
            CommandEntry(
                "restart",
                "service.processes:restart",
                "Restart the processes of a service one after the other.",
            ),
            CommandEntry("scale", "service.processes:scale", "Change the number of processes of a service."),
            CommandEntry(
                "finish-upgrade", "release.upgrade:finish_upgrade", "End a rolling upgrade: write the newest format."
            ),
            CommandEntry("txn", "inspect.txn:app", "List and abort open transactions that block readers."),
        ),
        "Inspect and repair the state": (
            CommandEntry("snapshot", "state.snapshot:app", "Inspect, take, back up, restore and export snapshots."),
            CommandEntry("compact", "state.compact:compact", "Write new full snapshots with Spark and verify them."),
            CommandEntry("prove", "inspect.prove:prove", "Rebuild each partition's state and sign its digest."),
            CommandEntry(
                "state",
                "state.state:app",
                "Change the state, or its number of partitions, while the service is stopped.",
            ),
            CommandEntry(
                "rebuild", "state.rebuild:rebuild_", "Run a release over the kept input, and replace the state by its."
            ),
            CommandEntry("repair", "state.repair:app", "Let partitions continue that refuse to start."),
            CommandEntry(
                "rehearse", "release.rehearse:rehearse_", "Run a release over past records, and compare its results."
            ),
            CommandEntry(
                "shadow", "release.shadow:shadow", "Run a release in parallel to the service, and compare its results."
            ),
            CommandEntry("sink", "topics.sink:app", "Prepare and check the database of a service's sinks."),
        ),
    }


app = typer.Typer(
    name="statehold",
    cls=_Commands,
    help="""Run stateful Kafka consumers that survive being killed.

MODULE:SERVICE is a Python module and the variable in it that holds the Service, such as order_totals.app:service.

First steps: `statehold new order-totals`, then the commands in the README.md that it writes. The examples in the help
of each command use that service.""",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"statehold {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before any command."""
