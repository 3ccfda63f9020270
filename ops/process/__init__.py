"""The process of a service: logs, signals, systemd, the control socket, a hard exit."""
