"""`holdfast pause` and `holdfast resume`: partitions stand still, in the group and across restarts, and go on."""

from __future__ import annotations

from holdfast.command import GO_ON, PAUSE
from holdfast.commanding import Commander
from holdfast.ops.cli.command import Timeout, Wait, follow
from holdfast.ops.cli.show import AsJson
from holdfast.ops.cli.target import (
    Config,
    InputName,
    Overrides,
    Partitions,
    Profile,
    SecretsDir,
    ServiceName,
    Target,
    names_of,
    partitions_of,
    quiet_settings,
)


def pause(
    target: Target = None,
    service: ServiceName = None,
    input_topic: InputName = None,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Have partitions commit what they have handled, close their transactions and handle no more records.

    holdfast pause examples.clearing.app:service --partitions 0,3-5

    The processes stay members of the group. The pause is in the partition's last mark: whoever owns it later, after a
    restart or a rebalance, stands still as well, until `holdfast resume`. It goes by the control topic.

    Exit code 0: every mark says so, or sent with --no-wait; 1: not in time (it is obeyed in its turn).
    """
    _switch(
        PAUSE, target, service, input_topic, partitions, wait, timeout, config, overrides, secrets_dir, profile, as_json
    )


def resume(
    target: Target = None,
    service: ServiceName = None,
    input_topic: InputName = None,
    partitions: Partitions = None,
    wait: Wait = True,
    timeout: Timeout = 60.0,
    config: Config = None,
    overrides: Overrides = None,
    secrets_dir: SecretsDir = None,
    profile: Profile = None,
    as_json: AsJson = False,
) -> None:
    """Have partitions that `holdfast pause` has stopped go on from where they stand.

    holdfast resume examples.clearing.app:service

    Exit code 0: every mark says so, or sent with --no-wait; 1: not in time (it is obeyed in its turn).
    """
    _switch(
        GO_ON, target, service, input_topic, partitions, wait, timeout, config, overrides, secrets_dir, profile, as_json
    )


def _switch(
    name: str,
    target: str | None,
    service: str | None,
    input_topic: str | None,
    partitions: str | None,
    wait: bool,
    timeout: float,
    config: Config,
    overrides: Overrides,
    secrets_dir: SecretsDir,
    profile: Profile,
    as_json: bool,
) -> None:
    settings = quiet_settings(config, overrides, secrets_dir, profile)
    commander = Commander(settings, names_of(settings, target, service, input_topic))
    sent = commander.send(name, partitions_of(partitions), control=True)
    follow(commander, name, sent, timeout if wait else None, as_json)
