"""The commands `statehold snapshot` that show and verify what is stored."""
