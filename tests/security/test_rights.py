"""Each role has exactly the rights that `statehold topics acl` prints: all are enough, each one is missed by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.support.local_service import Local
from tests.support.processes import await_true
from tests.support.secured import Right as Rule
from tests.support.secured import Secured
from tests.support.stage import Stage

from statehold.admin.topics import ServiceTopics
from statehold.common.access_rights import GROUP, IDS, ROLES, Right, rights_of
from statehold.common.names import Names
from statehold.config import load
from statehold.errors import AccessLost, AccessRefused, KafkaTrouble
from statehold.kafka.admin.acl_diagnosis import missing_right

pytestmark = pytest.mark.kafka

#: names stand for the real ones, so that a test's name is stable
SHAPE = Names("service", "input")
#: what each role does with its rights: arguments, and whether the service's names follow
Calls = list[tuple[list[str], bool]]


def _reading(stage: Stage) -> Calls:
    cat = [(["cat", topic, "-n", "1"], False) for topic in (stage.names.input, stage.output)]
    looks = [(["snapshot", "list"], True), (["snapshot", "verify"], True), (["lag"], True)]
    return [*cat, *looks, (["top", "--once"], True), (["topics", "check"], True)]


def _commanding(stage: Stage) -> Calls:
    return [(["snapshot", "take", "--timeout", "90", *way], True) for way in ((), ("--via-control-topic",))]


CALLS: dict[str, Callable[[Stage], Calls]] = {"reader": _reading, "commander": _commanding}
#: roles whose every command was seen to work with all of their rights
PROVEN: set[str] = set()
FULL_SNAPSHOTS = {"STATEHOLD_SNAPSHOT__FULL_INTERVAL": "1s", "STATEHOLD_SNAPSHOT__KEEP": "1"}


def shapes(role: str) -> list[str]:
    """Every right of a role, in words without a run's own names."""
    return [str(right) for right in rights_of(role, SHAPE, ["output"])]


@pytest.fixture(scope="module")
def stage(guarded: Secured, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A service whose roles each have their rights and a user, and some full snapshots and commit records."""
    made = Stage(guarded.servers, tmp_path_factory.mktemp("rights"), 2).create_topics()
    ServiceTopics(made.settings(), made.names, [made.output]).create("beginning", control=True)
    for role in ROLES:
        guarded.scram(user_of(made, role))
        guarded.grant(*(rule(made, role, right) for right in rights_of(role, made.names, [made.output])))
    with Local(made, **guarded.scram(user_of(made, "service")), **FULL_SNAPSHOTS) as local:
        local.await_live(0, 1)
        made.feed(300)
        made.await_all()
    yield made
    made.close()


def user_of(stage: Stage, role: str) -> str:
    return f"{stage.names.service}-{role}"


def rule(stage: Stage, role: str, right: Right) -> Rule:
    return Rule(user_of(stage, role), right.operation, right.kind, right.name, right.prefixed)


def real(stage: Stage, role: str, shape: str) -> Right:
    """The right of this stage that has such a shape."""
    return rights_of(role, stage.names, [stage.output])[shapes(role).index(shape)]


def test_a_service_with_its_rights_alone_works_and_lacks_nothing(guarded: Secured, stage: Stage) -> None:
    with Local(stage, **guarded.scram(user_of(stage, "service")), **FULL_SNAPSHOTS) as local:
        local.await_live(0, 1)
        stage.feed(300)
        stage.await_all()
    stage.verify()
    assert not local.events("right_missing", "failed", "truncation_failed")


@pytest.mark.parametrize("shape", shapes("service"))
def test_a_start_names_the_right_that_is_missing(guarded: Secured, stage: Stage, shape: str) -> None:
    """The thing, the operation, the principal, and the line that fixes it."""
    right, user = real(stage, "service", shape), user_of(stage, "service")
    with guarded.without(rule(stage, "service", right)):
        reported = logged_at_start(stage, guarded.scram(user), right)
    assert f"{right.operation} on {right.kind} {right.name}" in reported
    assert right.rule(f"User:{user}") in reported


def logged_at_start(stage: Stage, login: dict[str, str], right: Right) -> str:
    if right.kind != IDS and not right.optional:
        with pytest.raises(AccessRefused) as rejected:
            stage.service(**login).start()
        assert f"User:{login['STATEHOLD_KAFKA__SECURITY__SASL_USERNAME']} may not" in str(rejected.value)
        return str(rejected.value)
    with Local(stage, **login) as local:
        if right.kind == IDS:
            return local.await_failed(0, AccessLost)
        await_true(lambda: local.events("right_missing"), "the warning")
        local.await_live(0, 1)  # it works on
        return " ".join(map(str, local.events("right_missing")[0].values()))


def test_a_silence_is_explained_where_a_right_on_the_group_is_missing(guarded: Secured, stage: Stage) -> None:
    """A client that must not ask for the coordinator looks for it until its time is over, and says no more."""
    settings, user = load(env=guarded.scram(user_of(stage, "reader"))), user_of(stage, "reader")
    rights, silence = rights_of("reader", stage.names, [stage.output]), KafkaTrouble("no answer within 10 s")
    assert missing_right(settings, stage.names.group, rights, "reader", silence) == ""
    lost = next(right for right in rights if right.kind == GROUP)
    with guarded.without(rule(stage, "reader", lost)):
        reported = missing_right(settings, stage.names.group, rights, "reader", silence)
    assert f"User:{user} may not: DESCRIBE on group {stage.names.group}. " in reported
    assert lost.rule(f"User:{user}") in reported


@pytest.mark.long
@pytest.mark.parametrize(("role", "shape"), [(r, s) for r in CALLS for s in shapes(r)])
def test_a_command_names_what_it_may_not_do(guarded: Secured, stage: Stage, role: str, shape: str) -> None:
    right = real(stage, role, shape)
    with Local(stage, **guarded.scram(user_of(stage, "service"))) as local:
        local.await_live(0, 1)
        if role not in PROVEN:
            assert not denials(guarded, stage, role), "with all of its rights"
            PROVEN.add(role)
        with guarded.without(rule(stage, role, right)):
            reported = denials(guarded, stage, role)
    assert reported
    for each in reported:
        assert f"{right.operation} on {right.kind} {right.name}" in each, each
        assert right.rule(f"User:{user_of(stage, role)}") in each, each


def denials(guarded: Secured, stage: Stage, role: str) -> list[str]:
    """What each command of the role said that was refused something."""
    environment = {**os.environ, **stage.environment(**guarded.scram(user_of(stage, role)))}
    named = ["--name", stage.names.service, "--input", stage.names.input]
    reported = []
    for call in CALLS[role](stage):
        command = [sys.executable, "-m", "statehold.ops.cli.entry", *call[0], *(named if call[1] else ())]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode != 0:
            reported.append(done.stdout + done.stderr)
    return reported
