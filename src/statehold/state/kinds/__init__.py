"""Kinds of tables: sorted, with a ttl, by due time, windows, joins."""
