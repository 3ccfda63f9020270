"""Commands that read and change nothing."""
