"""Find pending effects that this code cannot call, before a partition goes live (rule E3).

A commit record stores a call by the name of its function and its arguments. Another release may have renamed the
function, removed it, or changed its parameters; a call that cannot succeed would be repeated without end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from statehold.api.handler import Handler
from statehold.common.decoding import UNREADABLE
from statehold.errors import UnknownEffect, class_and_text
from statehold.snapshot.format.partition_identity import Place
from statehold.snapshot.format.records import CommitRecord, Effect
from statehold.worker.handler import effect_calls

#: names of functions that a text lists, and their longest length
_NAMES: Final = 5
_LONGEST: Final = 100


def require_effects(handler: Handler[Any], place: Place, commit_record: CommitRecord) -> None:
    """Require that this code can call each pending effect. :raises UnknownEffect: it cannot."""
    causes = [(each, cause) for each in commit_record.effects if (cause := obstacle(handler, each))]
    if not causes:
        return
    (first, cause), code, name = causes[0], commit_record.writer.code, causes[0][0].function[:_LONGEST]
    raise UnknownEffect(
        f"{len(causes)} of {len(commit_record.effects)} pending effects cannot be called: "
        f"{by_function([each for each, _ in causes])}. The first one, {name!r} of "
        f"{first.topic}[{first.partition}]@{first.offset}: {cause}. {commit_record.writer.instance}"
        f"{f' (code {code})' if code else ''} wrote the last commit record. No record was handled, and all effects "
        f"stay pending. Next: run the code that has the function; or name the function that takes its calls, "
        f"{type(handler).__name__}.renamed_effects = {{{name!r}: FUNCTION}}; or stop the service and drop them: "
        f"`statehold repair drop-effects MODULE:SERVICE --why TEXT --dry-run`",
        topic=place.input,
        partition=place.partition,
        position=commit_record.position(place.input),
    )


def obstacle(handler: Handler[Any], effect: Effect) -> str:
    """Return why this code cannot call a pending effect; '' if it can."""
    try:
        given = len(effect_calls.arguments(effect))
    except UNREADABLE as error:
        return f"its arguments cannot be read: {error}"
    try:
        function, owner = effect_calls.unbound(effect_calls.resolve(handler, effect.function))
        signature, least, most = effect_calls.parameters(function)
    except (LookupError, AttributeError) as error:
        return f"there is no such function: {error}"
    except Exception as error:  # noqa: BLE001  an import may raise anything, and a name may be of no function
        return class_and_text(error)
    if least <= len(owner) + 1 + given <= most:
        return ""
    return f"it takes {signature}, and would be called with the key and {given} argument{'s' * (given != 1)}"


def by_function(effects: Sequence[Effect]) -> str:
    """Return the names of the functions with their numbers of calls, those with most calls first."""
    counts = Counter(each.function[:_LONGEST] for each in effects)
    shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common(_NAMES))
    return shown + (f" and {len(counts) - _NAMES} further functions" if len(counts) > _NAMES else "")
