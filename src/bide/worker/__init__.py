"""The worker: it claims messages, runs the handlers of an `App`, and settles them."""
