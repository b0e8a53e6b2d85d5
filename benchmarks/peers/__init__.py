"""Queues that users would pick instead, each run by an interpreter of its own."""
