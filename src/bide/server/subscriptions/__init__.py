"""Subscriptions: their form in requests and in Python, and pushing within the server."""
