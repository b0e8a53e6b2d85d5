"""What `bide check-deploy` has found, and how it is printed."""

import dataclasses
from collections import Counter

from bide.cli.output import DONE, NOT_DONE, Output, plural, warn
from bide.consuming.refusals import MessageRefusal

EXAMPLE_IDS = 3
"""How many ids are shown of the messages with the same fault."""

MOST_REASONS = 20
"""How many reasons are kept apart for one task: errors of validators may have values in them."""

OTHER_REASONS = "other reasons"

MOST_NAMED_QUEUES = 8
"""How many queues without a handler are named."""


class DeployReport:
    """The messages that fit, those that an app would refuse, and those that are not the app's."""

    def __init__(self) -> None:
        self.fitting = 0
        """The number of messages that fit."""
        self.refused = 0
        """The number of messages that the app would refuse."""
        self.unhandled: Counter[str] = Counter()
        """The number of messages in each queue that the app does not handle."""
        self._ids: dict[MessageRefusal, list[str]] = {}
        """The first ids of each refusal."""
        self._counts: Counter[MessageRefusal] = Counter()
        """The number of messages of each refusal."""
        self._reasons: Counter[tuple[str, str]] = Counter()
        """The number of different refusals by queue and name."""

    def refuse(self, refusal: MessageRefusal, id: str) -> None:
        """Count a message that the app would refuse, with others of the same fault."""
        self.refused += 1
        key = refusal.queue, refusal.name
        if refusal not in self._counts and self._reasons[key] >= MOST_REASONS:
            refusal = dataclasses.replace(refusal, reason=OTHER_REASONS)
        if refusal not in self._counts:
            self._reasons[key] += 1
            self._ids[refusal] = []
        self._counts[refusal] += 1
        if len(self._ids[refusal]) < EXAMPLE_IDS:
            self._ids[refusal].append(id)

    def print(self, out: Output, target: str) -> None:
        """Print the refusals, most messages first, and the verdict."""
        total = self.fitting + self.refused
        if out.as_json:
            out.json(
                {
                    "fits": not self.refused,
                    "pending": total,
                    "refused": self.refused,
                    "refusals": [
                        {
                            **dataclasses.asdict(refusal),
                            "messages": count,
                            "ids": self._ids[refusal],
                        }
                        for refusal, count in self._counts.most_common()
                    ],
                    "unhandled": dict(self.unhandled),
                }
            )
            return
        for refusal, count in self._counts.most_common():
            self._print_refusal(out, refusal, count)
        verdict = f"all {plural(total, 'pending message')} fit {target}"
        if total == 1:
            verdict = f"the pending message fits {target}"
        if self.refused:
            of_all = f"{self.refused:,} of {plural(total, 'pending message')}"
            verdict = f"{target} would refuse {of_all}"
        elif not total:
            verdict = f"no message is pending for {target}"
        remark = self._remark(target)
        if out.terminal:
            out.text(NOT_DONE if self.refused else DONE, verdict)
            if remark:
                out.text((remark, "dim"))
        else:
            warn(verdict)
            if remark:
                warn(remark)

    def _remark(self, target: str) -> str:
        """Return what was not checked; "" if all was."""
        if not self.unhandled:
            return ""
        queues = sorted(self.unhandled)
        ellipsis = ", ..." if len(queues) > MOST_NAMED_QUEUES else ""
        names = ", ".join(queues[:MOST_NAMED_QUEUES]) + ellipsis
        messages = plural(self.unhandled.total(), "message")
        return f"not checked, {target} has no handler for them: {messages} in {names}"

    def _print_refusal(self, out: Output, refusal: MessageRefusal, count: int) -> None:
        ids = self._ids[refusal]
        if not out.terminal:
            facts = refusal.queue, refusal.name, refusal.kind, count, refusal.reason
            out.row(*facts, ",".join(ids), refusal.fix)
            return
        summary = f": {plural(count, 'message')}, {refusal.kind}"
        out.text(NOT_DONE, (refusal.queue, "bold"), summary)
        out.text(f"  {refusal.reason}")
        out.text(("  ids: ", "dim"), ", ".join(ids) + (", ..." if count > len(ids) else ""))
        out.text(("  fix: ", "dim"), refusal.fix)
