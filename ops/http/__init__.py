"""The ops server of a running service: health, metrics, status, state queries and a web console, over HTTP."""
