-- Version 9: how many messages are in another store now, see bide.moving.
ALTER TABLE bide_queue ADD COLUMN moved INTEGER NOT NULL DEFAULT 0;
