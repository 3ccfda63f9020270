"""Transactions of a live partition."""
