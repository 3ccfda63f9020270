"""The command line, `statehold ...`. It needs the extra [cli]; no other package imports it."""
