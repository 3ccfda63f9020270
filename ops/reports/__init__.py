"""Reports about a service and its topics, for commands."""
