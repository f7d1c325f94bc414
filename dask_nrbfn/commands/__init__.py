"""What a person asks for: each command, on any engine, for every face."""
