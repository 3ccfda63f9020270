"""Operations: command line, metrics, tools."""
