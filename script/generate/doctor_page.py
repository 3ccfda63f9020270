"""Generates docs/reference/doctor.md from the checks."""

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

It checks the brokers, the service's topics, its group, this machine and the sinks' database, and finds problems before
they cause an outage. The second form does not need the service's code (its sinks are unknown then). The third form
checks the cluster alone. Each finding
is PASS, WARN, FAIL or UNKNOWN, with the reason and the command that fixes it. UNKNOWN means that the check could not
run, for example because a managed cluster rejects the request.

| exit code | when |
|---|---|
| 0 | every check is PASS |
| 10 | at least one WARN, nothing worse |
| 11 | at least one UNKNOWN, no FAIL |
| 12 | at least one FAIL |

It changes nothing except in the check `clocks`, which creates a topic `<group>.doctor-...`, writes a few empty records
to it and deletes it; `--no-probe` omits that. `--only CHECK` runs one check, `--quiet` prints only problems,
`--deep` reads and verifies every snapshot. A topic with one replica fails in production and is a
warning in development (`service.mode`).

With `doctor.at_start = "warn"` (the profile `production` sets it) `statehold run` runs the checks during its start and
logs each WARN and FAIL as event `doctor`; with `"fail"` it checks first and does not start if a check is FAIL.
Neither writes anything. With `"off"`, the default, it runs `key-partitioners` alone, in parallel, if the service has
several inputs. A program that embeds a service calls `statehold.ops.doctor.examine.examine(Case(settings,
names, outputs, sinks=sinks, references=topics))`.

"""


def document() -> str:
    """The whole page as Markdown."""
    rows = [f"| `{each.name}` | {each.looks_at} | {each.fails} | {each.warns} |" for each in CHECKS]
    return _HEAD + "\n".join(["| check | looks at | FAIL when | WARN when |", "|---|---|---|---|", *rows]) + "\n"
