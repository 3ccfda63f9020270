"""What all parts of a worker share: phases, signals, mailbox, context."""
