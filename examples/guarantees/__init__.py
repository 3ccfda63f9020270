"""Four ways to consume, each killed at the point that shows its guarantee; see docs/explanation/choosing.md."""
