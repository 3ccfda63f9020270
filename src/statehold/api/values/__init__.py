"""How values become bytes, and the proof that they come back as they were."""
