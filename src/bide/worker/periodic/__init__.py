"""Sources and schedules: chains of messages of which each puts the next."""
