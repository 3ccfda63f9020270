"""The kinds of tables on disk, and which table of a handler is there."""
