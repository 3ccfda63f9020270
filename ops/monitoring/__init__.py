"""What watches services: Prometheus alerts and a Grafana dashboard, made from the declared metrics.

`python -m holdfast.ops.monitoring` writes the files in deploy/prometheus and deploy/grafana anew; a test compares them.
"""
