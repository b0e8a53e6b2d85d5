"""Commands on messages. Each is in the file of its name."""
