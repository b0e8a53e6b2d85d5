"""What one client may use up, so that all others are served."""
