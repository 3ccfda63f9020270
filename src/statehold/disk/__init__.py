"""Tables on a local disk: their files, their rows, and the start of a partition from them."""
