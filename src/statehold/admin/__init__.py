"""Administration of a service: first start, topics, commands, compaction, dead letters, upgrades."""
