"""Posts every order to a web service, at least once and with the same key each time.

Run `statehold run examples.around.invoices:service`; INVOICES_URL is the web service (`examples.around.booking`).
"""

from __future__ import annotations

import os
import urllib.request

import msgspec

from statehold import Handler, Record, Service, Table

URL = os.environ.get("INVOICES_URL", "http://127.0.0.1:8080/invoices")


class Order(msgspec.Struct, frozen=True):
    """An order; the amount is in cents."""

    id: str
    customer: str
    amount: int


class Invoices(Handler[Order]):
    """Numbers each customer's invoices. The number is part of the state, so a repeated request has the same one."""

    numbers = Table(key=str, value=int)

    def on_record(self, record: Record[Order]) -> None:
        order = record.value
        number = self.numbers.get(order.customer, 0) + 1
        self.numbers[order.customer] = number
        self.effect(post, {"order": order.id, "customer": order.customer, "amount": order.amount, "number": number})


def post(key: tuple[str, int, int, int], invoice: dict[str, object]) -> None:
    """Post the invoice. An exception makes statehold retry later, with the same key and body."""
    headers = {"Idempotency-Key": "/".join(map(str, key)), "Content-Type": "application/json"}
    request = urllib.request.Request(URL, msgspec.json.encode(invoice), headers)  # noqa: S310  a configured URL
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
        pass


service = Service("invoices", input="orders", handler=Invoices)

if __name__ == "__main__":
    service.run()
