"""Commands for topics, access rights, dead letters and the database of the sinks."""
