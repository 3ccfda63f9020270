"""Arguments, output and progress of all commands."""
