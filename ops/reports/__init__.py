"""What commands report about a service and its topics."""
