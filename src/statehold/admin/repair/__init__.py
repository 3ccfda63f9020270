"""Repair a stopped service whose state or positions a restore rejects."""
