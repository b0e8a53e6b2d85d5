-- Version 8: what becomes of messages that are overdue after an outage, see bide.model.recovery; empty: they are
-- delivered.
ALTER TABLE bide_queue ADD COLUMN overdue TEXT NOT NULL DEFAULT '';
