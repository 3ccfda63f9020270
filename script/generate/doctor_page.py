"""Generates docs/doctor.md from the checks."""

from __future__ import annotations

from statehold.ops.doctor.examine import CHECKS

_HEAD = """\
# statehold doctor

This file is generated: `python -m script.generate`. A test compares the two.

```
statehold doctor examples.clearing.app:service -c examples/clearing/clearing.toml
statehold doctor --name clearing --input trades --output fills -c clearing.toml --json
statehold doctor -c clearing.toml
```

It looks at the brokers, the service's topics, its group, this machine and the database of its sinks before somebody is
called at night. The second form does not need the service's code (which sinks it has is unknown then), the third knows
no service and looks at the cluster alone. Each finding
is PASS, WARN, FAIL or UNKNOWN, with the reason and the command that mends it. UNKNOWN is what could not be looked at:
a question that the cluster refuses, as managed ones refuse some, is never PASS.

| exit code | when |
|---|---|
| 0 | every check is PASS |
| 10 | at least one WARN, nothing worse |
| 11 | at least one UNKNOWN, no FAIL |
| 12 | at least one FAIL |

It changes nothing, but for the check `clocks`: it makes a topic `<group>.doctor-...`, writes a few empty records
to it and deletes it; `--no-probe` leaves that out. `--only CHECK` looks at one thing, `--quiet` tells what is not
good, `--deep` reads and proves every snapshot. What holds one replica against a service depends on `service.mode`:
in production it fails, in development it is a warning.

With `doctor.at_start = "warn"` (the profile `production` has it) `statehold run` looks beside its own start and
logs each WARN and FAIL as event `doctor`; with `"fail"` it looks first and does not start when a check is FAIL.
Neither writes anything. A program that embeds a service calls `statehold.ops.doctor.examine.examine(Case(settings,
names, outputs, sinks=sinks))`.

"""


def document() -> str:
    """The whole page as Markdown."""
    rows = [f"| `{each.name}` | {each.looks_at} | {each.fails} | {each.warns} |" for each in CHECKS]
    return _HEAD + "\n".join(["| check | looks at | FAIL when | WARN when |", "|---|---|---|---|", *rows]) + "\n"
