"""Books payments exactly once: `uvicorn examples.microservice.app:app --port 8000 --timeout-graceful-shutdown 5`.

One port serves the application's routes, and under /ops the service's health, metrics and console. Start several
instances with different ports: each owns the accounts of its partitions, and each answers for every account.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Header, Query
from fastapi.responses import FileResponse

from statehold import Client, Handler, Receipt, Record, Replies, Service, Table
from statehold.asgi import answer_errors, client_of, lifespan, stream_changes
from statehold.config import load
from statehold.ops import OpsApplication


class Payment(msgspec.Struct, frozen=True):
    """A payment into an account. The record's key is the account, so one partition has all of its payments."""

    account: str
    cents: int


class Booked(msgspec.Struct, frozen=True):
    """The answer to a payment."""

    balance: int


class Payments(Handler[Payment]):
    """Adds payments up. An answer commits with the balance, and its id counts once within a day."""

    balances = Table(key=str, value=int)
    replies = Replies(Booked, keep=86_400)

    def on_record(self, record: Record[Payment]) -> None:
        """Book the payment and answer."""
        payment = record.value
        balance = self.balances[payment.account] = self.balances.get(payment.account, 0) + payment.cents
        record.reply(Booked(balance))


service = Service("payments", input="payments", handler=Payments, settings=load())
app = FastAPI(lifespan=lifespan(service, service.client()))
app.mount("/ops", OpsApplication(service))
answer_errors(app)
PaymentsClient = Annotated[Client, Depends(client_of)]


@app.post("/payments/{account}")
async def pay(
    account: str,
    cents: Annotated[int, Query(ge=1, le=1_000_000_000)],
    idempotency_key: Annotated[str, Header(min_length=1, max_length=200)],
    client: PaymentsClient,
) -> dict[str, Any]:
    """Book a payment. The same Idempotency-Key again gets the same answer, and books nothing."""
    paid = await client.ask_with_receipt(Payment(account, cents), key=account, reply=Booked, id=idempotency_key)
    return {"account": account, "balance": paid.value.balance, "receipt": str(paid.receipt)}


@app.get("/balances/{account}")
async def balance(client: PaymentsClient, account: str, after: str = "") -> dict[str, Any]:
    """Return a committed balance, which includes the payment of the receipt `after`."""
    receipt = Receipt.of(after) if after else None
    return {"account": account, "balance": await client.get("balances", account, value=int, after=receipt) or 0}


@app.get("/")
async def page() -> FileResponse:
    """Return the page that shows balances change."""
    return FileResponse(Path(__file__).with_name("page.html"))


@app.get("/balances")
async def balances(client: PaymentsClient, start: str = "") -> dict[str, Any]:
    """Return a page of balances, where the next one starts, and the position from which their changes continue.

    Of several pages the first one's position counts.
    """
    found = await client.get_range("balances", value=int, start=start or None, limit=1000)
    behind = found.rows[-1].key + "\0" if found.truncated else ""
    return {"rows": {row.key: row.value for row in found.rows}, "next": behind, "position": found.position}


@app.get("/changes")
async def changes(client: PaymentsClient, after: str = "", last_event_id: Annotated[str, Header()] = "") -> Any:
    """Stream the committed changes of balances. A browser that comes back continues by its last event."""
    return stream_changes(client.watch("balances", value=int, after=last_event_id or after))
