-- Version 5. Since when a worker holds a message, and how often it has extended the lease; and the last
-- pauses of each queue. `since` is empty for leases of older versions, `until` while the pause lasts.
ALTER TABLE bide_lease ADD COLUMN since INTEGER;
ALTER TABLE bide_lease ADD COLUMN extended INTEGER NOT NULL DEFAULT 0;
CREATE TABLE bide_pause (
  queue INTEGER NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  actor TEXT
);
CREATE INDEX bide_pause_queue ON bide_pause (queue);
