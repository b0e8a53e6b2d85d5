"""Commands on queues. Each is in the file of its name."""
