"""Forks: a child of this process begins anew, and the parent notices nothing."""

import os
import weakref
from typing import Protocol

__all__ = ["follow"]


class Forked(Protocol):
    """Somebody with threads, locks and connections of the process they were made in."""

    def before_fork(self) -> None:
        """Come to rest, so that the child does not inherit half of something."""

    def after_fork(self) -> None:
        """Go on: this is the parent."""

    def in_child(self) -> None:
        """Begin anew: threads are gone, connections are the parent's, locks may be held."""


_followers: "weakref.WeakSet[Forked]" = weakref.WeakSet()


def follow(follower: Forked) -> None:
    """Tell somebody of every fork for as long as they live."""
    _followers.add(follower)


def _before() -> None:
    for follower in list(_followers):
        follower.before_fork()


def _after() -> None:
    for follower in list(_followers):
        follower.after_fork()


def _in_child() -> None:
    for follower in list(_followers):
        follower.in_child()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_in_child)
