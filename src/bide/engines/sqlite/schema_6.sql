-- Version 6: closed groups, see bide.engines.rules.closing. `closed`: how many rows a queue has in bide_closed.
ALTER TABLE bide_queue ADD COLUMN closed INTEGER NOT NULL DEFAULT 0;

CREATE TABLE bide_closed (
  queue   INTEGER NOT NULL,
  "group" TEXT    NOT NULL,
  until   INTEGER NOT NULL,  -- when it opens again
  PRIMARY KEY (queue, "group")
) WITHOUT ROWID;
CREATE INDEX bide_closed_until ON bide_closed (queue, until, "group");
