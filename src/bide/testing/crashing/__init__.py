"""Crash tests of handlers: a handler runs once for each place at which its process may die."""
