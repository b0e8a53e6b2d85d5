"""Engines: what executes commands, one kind of store each."""
