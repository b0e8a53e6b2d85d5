"""Limits on what one client may use, so that all others are served."""
