"""How commands are executed on queues that are kept as records: memory and SQLite."""
