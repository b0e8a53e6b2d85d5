"""Commands on queues. A file's name lists its commands."""
