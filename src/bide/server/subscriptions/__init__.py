"""Subscriptions: how they look to clients and to Python, and pushing within the server."""
