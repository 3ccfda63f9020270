"""The service: `statehold run examples.clearing.app:service --config examples/clearing/clearing.toml`."""

from examples.clearing.domain import Account, Fill, MarginCall, Position, Trade
from statehold import Handler, Output, Record, Service, Table


class Clearing(Handler[Trade]):
    """Books the trades of one partition. Trades are keyed by account, so an account is in one partition."""

    positions = Table(key=str, value=Position)
    accounts = Table(key=str, value=Account)
    fills = Output("fills", value=Fill)
    margin_calls = Output("margin-calls", value=MarginCall)

    def on_record(self, record: Record[Trade]) -> None:
        trade = record.value
        name = f"{trade.account}/{trade.instrument}"

        before = self.positions.get(name, Position())
        after = before.trade(trade.lots, trade.price)
        self.positions[name] = after
        realised = after.realised - before.realised
        fill = Fill(trade.id, trade.account, trade.instrument, after.quantity, after.average, realised)
        self.fills.send(fill, key=trade.account)

        account = self.accounts.get(trade.account, Account())
        settled = account.settle(before, after)
        self.accounts[trade.account] = settled
        if settled.called and not account.called:
            call = MarginCall(trade.id, trade.account, settled.cash, settled.margin)
            self.margin_calls.send(call, key=trade.account)


service = Service("clearing", input="trades", handler=Clearing)

if __name__ == "__main__":
    service.run()
