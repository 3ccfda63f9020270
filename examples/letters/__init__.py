"""Payments of which some cannot be booked, and a desk that reads the dead letters: both ordinary services."""
