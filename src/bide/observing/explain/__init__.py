"""Explain why a message is where it is: as data, and as a sentence in English or Chinese."""

from bide.observing.explain.explanation import Explanation, Reason

__all__ = ["Explanation", "Reason"]
