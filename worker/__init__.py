"""One partition: its lifecycle, mailbox, transactions and handler."""
