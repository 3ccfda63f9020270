"""Back up a service and restore it on another cluster."""
