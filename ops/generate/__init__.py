"""Generate files: a new service, systemd units, AsyncAPI."""
