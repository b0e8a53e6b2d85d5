"""Messages on their way between stores: moved live, and imported from other systems."""
