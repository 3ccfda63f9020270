"""A program's way to a service: ask it, write to it, read what it has committed."""
