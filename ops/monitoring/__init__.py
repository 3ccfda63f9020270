"""What watches services: Prometheus alerts and a Grafana dashboard, made from the declared metrics.

`python -m statehold.ops.monitoring` writes the files in deploy/prometheus and deploy/grafana; a test compares them.
"""
