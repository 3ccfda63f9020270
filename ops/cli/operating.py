"""The commands of whoever operates a service, added to `holdfast` together."""

from __future__ import annotations

import typer

from holdfast.ops.cli import config, deploy, dlq, doctor, lag, new, sink, support, top, txn


def add_to(app: typer.Typer) -> None:
    app.command("new")(new.new)
    app.command("doctor")(doctor.doctor)
    app.command("lag")(lag.lag)
    app.command("top")(top.top)
    app.command("support-bundle")(support.support_bundle)
    app.add_typer(dlq.app, name="dlq")
    app.add_typer(sink.app, name="sink")
    app.add_typer(txn.app, name="txn")
    app.add_typer(config.app, name="config")
    app.add_typer(deploy.app, name="deploy")
