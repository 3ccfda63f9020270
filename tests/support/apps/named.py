"""Services by their names, for programs that get `MODULE:SERVICE` and no environment: the attribute has the names.

`tests.support.apps.named:NAME/INPUT/OUTPUT` is the service of `apps.tally` with these names.
"""

from __future__ import annotations

from tests.support.apps.tally import tally

from statehold import Service


def __getattr__(name: str) -> Service:
    service, slash, rest = name.partition("/")
    topic, _, output = rest.partition("/")
    if not slash:
        raise AttributeError(name)
    return Service(service, input=topic, handler=tally(output))
