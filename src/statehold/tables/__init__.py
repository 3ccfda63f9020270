"""Kinds of tables: sorted, with a ttl, traced, by due time; names of the system tables."""
