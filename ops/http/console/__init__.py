"""What the console shows; its page is in `static`."""
