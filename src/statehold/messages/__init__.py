"""The records that statehold reads and writes beside the changelog: commands, dead letters, retries."""
