"""Answers over HTTP for a running service: health, metrics, status, state, and a page for people."""
