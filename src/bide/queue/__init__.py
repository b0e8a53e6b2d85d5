"""The queue as programs use it: `Queue` for threads, `AsyncQueue` for event loops."""
