"""What a message is and what may happen to it. No I/O, no clock."""
