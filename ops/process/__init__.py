"""The process of a service: logs, signals, systemd, control, a hard exit."""
