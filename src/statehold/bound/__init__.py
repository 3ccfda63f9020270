"""What a declaration becomes in a partition: its table, output, sink, reference data, policies and types."""
