"""What the stored bytes of a table mean: a description of the types of its keys and values, which the state carries."""
