"""Schedules, which are messages that repeat, and sources, which are chains of messages."""
