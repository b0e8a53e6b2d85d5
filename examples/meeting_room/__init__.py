"""A meeting room: it starts, ends, reminds and refuses by itself."""
