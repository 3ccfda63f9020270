"""Four ways to consume, each with the moment at which a death shows what it promises; see docs/choosing.md."""
