"""A service with two inputs: exposure per account from trades and prices, alerts, candles of a minute."""
