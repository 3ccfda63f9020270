"""The command line: `holdfast ...`. Needs the extra [cli]; nothing else in holdfast imports it."""
