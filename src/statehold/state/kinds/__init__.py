"""Kinds of tables: sorted, with a ttl, traced, by due time, windows, joins."""
