"""The bytes of changelog and snapshot topics, and whether a chain of them is whole."""
