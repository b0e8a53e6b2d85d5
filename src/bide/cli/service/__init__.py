"""Commands that run and configure services. Each is in the file of its name."""
