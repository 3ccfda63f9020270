"""What the commands share: arguments, output, progress."""
