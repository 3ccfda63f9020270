"""`statehold state migrate | repartition`: changes a stopped state (docs/how-to/state/state-maintenance.md)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from statehold.admin.state import migrate as migration
from statehold.admin.state import move_input
from statehold.admin.state import repartition as repartitioning
from statehold.admin.state.position_args import offsets_of
from statehold.common.partitioner import PARTITIONERS
from statehold.errors import UsageError, class_and_text
from statehold.ops.cli.common import output
from statehold.ops.cli.common.output import WrongOption
from statehold.ops.cli.common.spark import SparkMemory, importing_session
from statehold.ops.cli.state.acting import SHOWN, StateChange, with_change
from statehold.ops.cli.state.inputs import inputs
from statehold.snapshot.state_edits import Edit, drop, read_patches

app = typer.Typer(help="Change the state of a stopped service, its partitions, or its inputs.", no_args_is_help=True)
app.command("inputs")(inputs)


@app.command("migrate")
@with_change
def migrate(
    change: StateChange,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="TABLE=MODULE:FUNCTION",
            help="Call (key, old) -> new for every key of a table; None deletes. May be repeated.",
        ),
    ] = None,
    dropped: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="TABLE", help="Delete every key of a table. May be repeated."),
    ] = None,
    handlers: Annotated[
        str | None,
        typer.Option(
            "--handlers",
            metavar="MODULE:FUNCTION",
            help="Call (old, new) once for each partition, with the handlers of the old and the new release: it splits "
            "or merges tables.",
        ),
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Apply JSON lines: {"table": "totals", "key": "ann", "value": {...}}.'),
    ] = None,
    spark_master: Annotated[
        str | None,
        typer.Option(
            "--spark-master",
            metavar="URL",
            help="Use Spark: local[N], spark://HOST:PORT, ..., or 'submit' for spark-submit's configuration. "
            "[default: in this process, a partition at a time]",
        ),
    ] = None,
    spark_memory: SparkMemory = "1g",
) -> None:
    """Change the state of a stopped service, in all partitions at once; records who did it and why.

    statehold state migrate order_totals.app:service --why "ticket 7" \\
        --table totals=fixes:halve --dry-run

    Without --yes it changes nothing and shows the resulting state.
    Exit code 0: changed, or shown; 1: rejected, and nothing was changed.
    """
    service = change.service
    functions: dict[str, Edit] = {name: _function(text) for name, text in map(_pair, tables or ())}
    functions |= dict.fromkeys(dropped or (), drop)
    patches = read_patches(patch.read_text().splitlines(), str(patch)) if patch else []
    if handlers is None and not functions and not patches:
        raise WrongOption(
            "nothing to do: give --table TABLE=MODULE:FUNCTION, --drop TABLE, --patch FILE, or "
            "--handlers MODULE:FUNCTION"
        )
    if handlers is not None and (tables or patches or spark_master is not None):
        raise WrongOption("--handlers works in this process, with --drop; leave out --table, --patch, --spark-master")
    reason = change.reason(migration.TOOL)
    what = change.settings, service.names, service.handler, functions, patches, reason
    act = change.acts()
    if handlers is not None:
        about = change.settings, service.names, service.handler, _function(handlers), reason
        done = migration.split_or_merge(*about, dropped=dropped or (), dry_run=not act)
    elif spark_master is None:
        done = migration.migrate(*what, dry_run=not act)
    else:
        with importing_session("statehold state migrate", spark_master, spark_memory) as spark:
            from statehold.admin.state import migrate_spark

            done = migrate_spark.migrate(spark, *what, dry_run=not act)
    if change.as_json:
        output.print_json(done)
        return
    columns = ("partition", "position", "keys", "changed", "added", "deleted", "digest before", "after")
    rows = [
        (
            each.partition,
            each.position,
            f"{each.counts.before} -> {each.counts.after}",
            each.counts.changed,
            each.counts.added,
            each.counts.deleted,
            each.old_digest[:12],
            each.digest[:12],
        )
        for each in done.partitions
    ]
    output.print_table(columns, rows)
    for each in done.partitions:
        if each.tables:
            keys = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in sorted(each.tables.items()))
            output.report(f"partition {each.partition}: keys of {keys}")
    output.report(f"changed, state generation {done.lineage}" if act else SHOWN)


@app.command("repartition")
@with_change
def repartition(
    change: StateChange,
    to: Annotated[int, typer.Option("--to", min=1, metavar="N", help="Use N partitions of the input.")],
    partitioner: Annotated[
        str,
        typer.Option(metavar="NAME", help="Name the producers' partitioner: murmur2, crc32, fnv1a or MODULE:FUNCTION."),
    ] = "murmur2",
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="TABLE=MODULE:FUNCTION",
            help="Call (key, value) -> the record key of an entry. [default: the table's key]",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            metavar="TOPIC[,...]",
            help="Continue in this input topic, and close the old one; of several inputs name all new ones. Needs "
            "--barrier.",
        ),
    ] = None,
    barrier: Annotated[
        str | None,
        typer.Option(
            metavar="end|OFFSET|P=OFFSET,...",
            help="End the old input here; no record may be beyond it. With several inputs TOPIC:P=OFFSET,...",
        ),
    ] = None,
    spool_dir: Annotated[
        Path | None,
        typer.Option(
            "--spool-dir", metavar="DIR", help="Store the state here while it is redistributed. [default: TMPDIR]"
        ),
    ] = None,
    quiet: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Watch the input for producers at least this long.")
    ] = 5.0,
) -> None:
    """Redistribute the state of a stopped service to more partitions, and grow its topics. Stop the producers first.

    statehold state repartition order_totals.app:service \\
        --to 8 --why "more load" --dry-run

    Without --yes it changes nothing and shows the resulting state.
    With --into the producers write to a new topic instead, of more or fewer partitions, and the service continues
    there from the state at the barrier.

    Exit code 0: changed, or shown; 1: rejected, and nothing was changed.
    """
    service, reason = change.service, change.reason(repartitioning.TOOL)
    place = PARTITIONERS.get(partitioner) or _function(partitioner)
    functions = {name: _function(text) for name, text in map(_pair, keys or ())}
    what = change.settings, service.names, service.handler
    if (into is None) != (barrier is None):
        raise WrongOption("--into and --barrier belong together: where the new input is, and where the old one ends")
    act = change.acts()
    options: dict[str, Any] = {"quiet": quiet, "dry_run": not act, "spool_dir": spool_dir}
    if into is not None and barrier is not None:
        ends = None if barrier == "end" else offsets_of(barrier)
        done = move_input.move(*what, into, to, ends, place, functions, reason, **options)
    else:
        done = repartitioning.repartition(*what, to, place, functions, reason, **options)
    if change.as_json:
        output.print_json(done)
        return
    columns = ("partition", "position", "keys before", "keys after", "digest")
    rows = [(each.partition, each.position, each.old_keys, each.keys, each.digest[:12]) for each in done.partitions]
    output.print_table(columns, rows)
    output.report(f"{done.keys} keys, {done.moved} in another partition; digest of all {done.digest}, as before")
    if not act:
        output.report(SHOWN)
    else:
        output.report(f"changed, state generation {done.lineage}")
        if done.into:
            several = done.into.split(",")
            now = f"inputs={several}" if len(several) > 1 else f"input={done.into!r}"
            closed = ", ".join(service.names.inputs)
            output.report(f"the service continues with {now}; {closed} {'is' if len(several) == 1 else 'are'} closed")


def _pair(text: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise WrongOption(f"{text!r}: write TABLE=MODULE:FUNCTION, such as positions=fixes:halve")
    return name, rest


def _function(text: str) -> Callable[..., Any]:
    """:raises UsageError: the module or function does not exist."""
    module, _, name = text.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name, None) if module and name else None
    except ImportError as error:
        raise UsageError(f"{text}: {error}; run the command in the directory that holds it") from error
    except Exception as error:  # the user's module may raise anything
        raise UsageError(f"{text}: the module raised {class_and_text(error)}") from error
    if not callable(found):
        raise UsageError(f"{text}: there is no such function; write module:function")
    return found  # type: ignore[no-any-return]
