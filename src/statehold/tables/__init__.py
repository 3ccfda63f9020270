"""Kinds of tables and what they share: sorted, with a ttl, traced; tables of the framework itself."""
