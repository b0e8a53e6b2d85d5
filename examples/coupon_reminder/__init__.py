"""Remind the owner of a coupon three days before it expires."""
