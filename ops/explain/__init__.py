"""Explanations of errors, alerts, log events and exit codes, for `statehold explain`, the runbook and the console."""
