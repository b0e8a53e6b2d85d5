"""Worker processes: the supervisor, its children, signals, reload and health."""
