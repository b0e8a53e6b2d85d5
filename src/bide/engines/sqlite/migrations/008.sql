-- Version 8. Limited queues, in which groups take turns; other queues have no rows here. Times of
-- these tables are Unix microseconds, but `freed` is milliseconds; see bide.model.times.
ALTER TABLE bide_queue ADD COLUMN limited INTEGER NOT NULL DEFAULT 0;

CREATE TABLE bide_limit (
  queue       INTEGER PRIMARY KEY,
  "limit"     INTEGER NOT NULL,
  rate        INTEGER NOT NULL,  -- the interval from one message to the next; 0: no limit
  group_limit INTEGER NOT NULL,
  group_rate  INTEGER NOT NULL,
  turn        INTEGER NOT NULL,  -- how many turns there were
  last        INTEGER NOT NULL,  -- when the last message counts as served
  freed       INTEGER NOT NULL,  -- when a lease ended last while the queue was full
  rank        INTEGER,           -- up to which ready messages stand in lines; empty: all do
  seq         INTEGER
);

-- Groups that have messages in line or leased, or whose rate holds them. `key` is "=" and the name,
-- or empty for messages without a group.
CREATE TABLE bide_group (
  queue    INTEGER NOT NULL,
  key      TEXT    NOT NULL,
  running  INTEGER NOT NULL,     -- how many of its messages are leased
  waiting  INTEGER NOT NULL,     -- how many stand in line
  turn     INTEGER NOT NULL,     -- the smallest goes first
  last     INTEGER NOT NULL,     -- as in bide_limit
  freed    INTEGER NOT NULL,
  standing INTEGER NOT NULL,     -- 0 neither, 1 takes turns, 2 waits for its rate, 3 is idle
  rank     INTEGER NOT NULL,     -- within a standing: `turn` if it takes turns, else `last`
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX bide_group_rank ON bide_group (queue, standing, rank, key);

-- The ready messages of each group. They are in bide_pending, too.
CREATE TABLE bide_line (
  queue INTEGER NOT NULL,
  key   TEXT    NOT NULL,
  rank  INTEGER NOT NULL,
  seq   INTEGER NOT NULL,
  PRIMARY KEY (queue, key, rank, seq)
) WITHOUT ROWID;
