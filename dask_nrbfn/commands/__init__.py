"""The commands, on any engine, for the command line and for Python."""
