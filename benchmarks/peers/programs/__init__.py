"""A small program for each peer, which speaks the lines of `protocol`."""
