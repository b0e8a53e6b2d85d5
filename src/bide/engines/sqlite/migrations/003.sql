-- Version 3. The due time that was asked for, of messages whose due time a retry has moved: the version
-- of a message depends on it, and does not change with a failed attempt.
ALTER TABLE bide_message ADD COLUMN planned INTEGER;
