"""What a user declares and calls: handlers, tables, outputs, sinks, reference data, failure policies."""
