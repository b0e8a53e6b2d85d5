"""Kits for frameworks: each needs its framework, and none is imported by bide itself."""
