-- Version 9: plans for what is overdue after an outage, see bide.model.recovery. What is postponed keeps the time for
-- which it was planned; the functions of an older version know no such change.
ALTER TABLE bide.queue ADD COLUMN overdue text NOT NULL DEFAULT '';  -- the plan; empty: messages are delivered

ALTER TYPE bide._asked ADD ATTRIBUTE overdue text;
