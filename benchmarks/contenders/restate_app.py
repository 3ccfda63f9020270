"""Restate's contender: an object for each account, with a total of scored payments, or one of asked payments.

An ASGI program in an environment of its own. `SCORER_PORT` is where the scorer of `benchmarks.scorer` listens.
"""

import os
import sys
from pathlib import Path
from typing import Any

import restate

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.scorer import Scores

account = restate.VirtualObject("Account")
scores = Scores(int(os.environ.get("SCORER_PORT", "0")))


@account.handler()  # type: ignore[untyped-decorator]
async def scored(ctx: Any, payment: dict[str, Any]) -> None:
    """Call the scorer durably and add its points."""
    points = await ctx.run_typed("score", scores.score, payment=payment["id"])
    ctx.set("total", (await ctx.get("total") or 0) + points)


@account.handler()  # type: ignore[untyped-decorator]
async def book(ctx: Any, payment: dict[str, Any]) -> dict[str, int]:
    """Add the amount and return the total."""
    total = (await ctx.get("total") or 0) + payment["amount"]
    number = (await ctx.get("number") or 0) + 1
    ctx.set("total", total)
    ctx.set("number", number)
    return {"balance": total, "number": number}


app = restate.app([account], protocol=os.environ.get("RESTATE_PROTOCOL") or None)
