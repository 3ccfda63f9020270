"""Run the handler over records."""
