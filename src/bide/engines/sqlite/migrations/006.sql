-- Version 6. What queues remember of messages that have ended, if they do: an end of an id is a row, and
-- an id may have several. `how` is a place in ENDINGS of bide.model.ended.
CREATE TABLE bide_ended (
  seq      INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  how      INTEGER NOT NULL,
  moment   INTEGER NOT NULL,
  "by"     TEXT,
  due      INTEGER NOT NULL,
  attempt  INTEGER NOT NULL,
  since    INTEGER,
  failures TEXT,              -- as in bide_message
  result   TEXT               -- JSON
);
CREATE INDEX bide_ended_id ON bide_ended (queue, id);
CREATE INDEX bide_ended_moment ON bide_ended (queue, moment);
ALTER TABLE bide_queue ADD COLUMN history INTEGER NOT NULL DEFAULT 0;     -- milliseconds
ALTER TABLE bide_queue ADD COLUMN result_ttl INTEGER NOT NULL DEFAULT 0;  -- milliseconds
ALTER TABLE bide_queue ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;       -- how many rows it has there
