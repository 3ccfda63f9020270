"""Every order that is booked is posted to a web service, at least once and always under one key.

`statehold run examples.around.invoices:service`, with INVOICES_URL where somebody takes them (`examples.around.taker`).
"""

from __future__ import annotations

import os
import urllib.request

import msgspec

from statehold import Handler, Record, Service, Table

URL = os.environ.get("INVOICES_URL", "http://127.0.0.1:8080/invoices")


class Order(msgspec.Struct, frozen=True):
    """What was bought; the amount is in cents."""

    id: str
    customer: str
    amount: int


class Invoices(Handler[Order]):
    """Numbers each customer's invoices; the number is part of the state, so it is the same however often it is sent."""

    numbers = Table(key=str, value=int)

    def on_record(self, record: Record[Order]) -> None:
        order = record.value
        number = self.numbers.get(order.customer, 0) + 1
        self.numbers[order.customer] = number
        self.effect(post, {"order": order.id, "customer": order.customer, "amount": order.amount, "number": number})


def post(key: tuple[str, int, int, int], invoice: dict[str, object]) -> None:
    """Raising means: try again later. The same key comes with the same body, whoever sends it."""
    headers = {"Idempotency-Key": "/".join(map(str, key)), "Content-Type": "application/json"}
    request = urllib.request.Request(URL, msgspec.json.encode(invoice), headers)  # noqa: S310  our own URL
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
        pass


service = Service("invoices", input="orders", handler=Invoices)

if __name__ == "__main__":
    service.run()
