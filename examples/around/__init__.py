"""Effects, duplicates from upstream and timers: one file each."""
