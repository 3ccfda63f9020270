"""The service: `statehold run examples.orders.app:service`.

Orders are keyed by order, customers by customer. An order subscribes to its customer, in the partition that owns the
customer; the customer, and each change of it, comes back to the partition that owns the order. Only that partition
writes the result of an order, so the newest one is always the last.
"""

from typing import Any, ClassVar

import msgspec

from statehold import Handler, Output, Record, Rekey, Service, Table, on


class Order(msgspec.Struct, frozen=True):
    """An order of a customer; a null value deletes it."""

    customer: str
    amount: int


class Customer(msgspec.Struct, frozen=True):
    """A customer; a null value deletes it."""

    name: str


class Joined(msgspec.Struct, frozen=True):
    """An order with its customer; `customer` is None in a left join without one."""

    order: Order
    customer: Customer | None


class Interest(msgspec.Struct, frozen=True):
    """The order wants to know its customer: its newest version does, or with -1 it does no more."""

    order: str
    version: int


class Found(msgspec.Struct, frozen=True):
    """The customer of this version of an order; None: it does not exist."""

    version: int
    customer: Customer | None


class OpenOrder(msgspec.Struct, frozen=True):
    """The newest version of an order. `shown`: the result has a row for it."""

    order: Order
    version: int
    shown: bool


class Orders(Handler[Any]):
    """An inner join: an order has a row while its customer exists."""

    #: a left join: an order always has a row
    left: ClassVar[bool] = False

    orders = Table(key=str, value=OpenOrder)
    customers = Table(key=str, value=Customer)
    interests = Table(key=tuple[str, str], value=int, sorted=True)  # (customer, order) -> version of the order

    to_customer = Rekey("to_customer", key=str, value=Interest)
    to_order = Rekey("to_order", key=str, value=Found)
    joined = Output("orders-with-customers", value=Joined | None, key=str)

    @on("orders", value=Order | None, key=str)
    def order(self, record: Record[Order | None, str]) -> None:
        number, new = record.key, record.value
        old = self.orders.get(number)
        if old is not None and (new is None or new.customer != old.order.customer):
            self.to_customer.send(Interest(number, -1), key=old.order.customer)
        if new is not None:
            self.orders[number] = OpenOrder(new, record.offset, old is not None and old.shown)
            self.to_customer.send(Interest(number, record.offset), key=new.customer)
        elif old is not None:
            del self.orders[number]
            if old.shown:
                self.joined.send(None, key=number)

    @on("customers", value=Customer | None, key=str)
    def customer(self, record: Record[Customer | None, str]) -> None:
        name, customer = record.key, record.value
        if customer is not None:
            self.customers[name] = customer
        elif name in self.customers:
            del self.customers[name]
        for (_, order), version in self.interests.range((name, ""), (name + "\0", "")):
            self.to_order.send(Found(version, customer), key=order)

    @on(to_customer)
    def interest(self, record: Record[Interest, str]) -> None:
        customer, interest = record.key, record.value
        if interest.version >= 0:
            self.interests[customer, interest.order] = interest.version
            self.to_order.send(Found(interest.version, self.customers.get(customer)), key=interest.order)
        elif (customer, interest.order) in self.interests:
            del self.interests[customer, interest.order]

    @on(to_order)
    def found(self, record: Record[Found, str]) -> None:
        number, found = record.key, record.value
        now = self.orders.get(number)
        if now is None or now.version != found.version:
            return  # a later version of the order has asked again
        shown = self.left or found.customer is not None
        if shown:
            self.joined.send(Joined(now.order, found.customer), key=number)
        elif now.shown:
            self.joined.send(None, key=number)
        self.orders[number] = OpenOrder(now.order, now.version, shown)


class AllOrders(Orders):
    """A left join: an order without a customer has a row, too."""

    left = True


service = Service("orders", inputs=["orders", "customers"], handler=Orders)

if __name__ == "__main__":
    service.run()
