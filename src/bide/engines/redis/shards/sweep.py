"""Cancel and purge by a rule, over all shards: in each a share of what may be changed at a time."""

from bide.engines.redis.shards.made import Made
from bide.engines.redis.shards.rounds import together
from bide.engines.redis.verbs.change import rule_of, sweep
from bide.engines.redis.verbs.job import Job
from bide.model.commands import Cancel, Purge
from bide.model.replies import Affected

__all__ = ["sweep_all"]


def sweep_all(command: Cancel | Purge, made: Made) -> Job:
    """Delete or count what a rule names in all shards."""
    if isinstance(command, Purge) and command.state == "leased":  # somebody holds those
        return [Affected(0)]
    rule = rule_of(command)
    left, total = rule.most, 0
    unfinished = list(range(made.count))
    while unfinished and left > 0:
        share = max(1, left // len(unfinished)) if rule.change else rule.most
        chosen = unfinished[:left]
        jobs = {s: sweep(command.queue, rule._replace(most=share)) for s in chosen}
        told = yield from together(jobs, made.count)
        found = sum(count for count, _ in told.values())
        total += found
        left -= found
        unfinished = [s for s in unfinished if s not in told or told[s][1]]
    return [Affected(total, more=bool(unfinished))]
