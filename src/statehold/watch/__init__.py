"""Follows the committed changes of a table from its changelog, for a `Client` and for the ops server."""
