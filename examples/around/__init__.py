"""Around the record: side effects, duplicates from upstream, timers. One file each."""
