"""Claim messages, run their handlers, extend their leases and settle them."""
