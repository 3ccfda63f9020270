"""The classes that the body of a `Handler` uses, with what a user may call. The engine's parts derive from them."""
