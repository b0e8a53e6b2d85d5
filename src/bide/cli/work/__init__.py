"""Commands that take, run and settle work. Each is in the file of its name."""
