-- Version 11. The due time that a put, an edit or a reschedule asked for, of messages that were revived: the
-- version of a message depends on it, and does not change with a revival.
ALTER TABLE bide_message ADD COLUMN asked INTEGER;
