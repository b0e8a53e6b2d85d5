"""What a move has done, and what it left where it was."""

import msgspec

from bide.model.replies import Counts

__all__ = ["Moved"]

EXAMPLES = 100


class Moved(msgspec.Struct):
    """What a move did. True when nothing is left in the source."""

    queue: str
    moved: int = 0
    """Messages that are in the target now: delayed and ready ones."""
    dead: int = 0
    """Dead letters that are in the target now."""
    finished: int = 0
    """Of those, the messages that an earlier run, which was interrupted, had in transit."""
    held: int = 0
    """Messages that stay because somebody held them at the end of the run."""
    known: int = 0
    """Messages that stay because the target has one of the same id."""
    known_ids: list[str] = []
    """The first hundred of their ids."""
    remembered: int = 0
    """Acked and expired messages that only the source remembers."""
    left: int = 0
    """All messages that were in the source at the end of the run."""

    def __bool__(self) -> bool:
        return self.left == 0

    def fresh(self) -> None:
        """Forget what an earlier pass found to stay."""
        self.known, self.known_ids = 0, []

    def stays(self, id: str) -> None:
        """Count one whose id the target has."""
        self.known += 1
        if len(self.known_ids) < EXAMPLES:
            self.known_ids.append(id)

    def ends(self, counts: Counts) -> None:
        """Tell what is in the source at the end."""
        self.held = counts.sizes.leased
        self.left = counts.sizes.total
        self.remembered = counts.kept
