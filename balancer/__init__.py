"""The manager thread: subscription, assignment, flow control."""
