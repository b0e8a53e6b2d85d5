"""The worker: it claims messages, runs the handlers of an `App`, and settles what they leave."""
