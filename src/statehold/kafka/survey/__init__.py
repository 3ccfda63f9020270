"""What the doctor asks of a cluster."""
