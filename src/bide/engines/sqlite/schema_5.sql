-- Version 5: limited queues of lines, heads and tags, see bide.engines.limiter. Times are Unix microseconds.
ALTER TABLE bide_limit RENAME TO bide_limit_4;
CREATE TABLE bide_limit (
  queue       INTEGER PRIMARY KEY,
  "limit"     INTEGER NOT NULL,
  rate        INTEGER NOT NULL,  -- the interval from one message to the next; 0: no limit
  group_limit INTEGER NOT NULL,
  group_rate  INTEGER NOT NULL,
  tag         INTEGER NOT NULL,  -- of the head that was served last
  last        INTEGER NOT NULL   -- when the last message counts as served
);
INSERT INTO bide_limit (queue, "limit", rate, group_limit, group_rate, tag, last)
SELECT queue, "limit", rate, group_limit, group_rate, 0, last FROM bide_limit_4;
DROP TABLE bide_limit_4;

-- Groups that have messages in line or leased, or whose rate holds them. `key` is "=" and the name, or
-- empty for messages without a group. Of a group with a line, `rank` and `seq` are those of the first
-- message in it.
ALTER TABLE bide_group RENAME TO bide_group_4;
DROP INDEX bide_group_rank;
CREATE TABLE bide_group (
  queue   INTEGER NOT NULL,
  key     TEXT    NOT NULL,
  running INTEGER NOT NULL,  -- how many of its messages are leased
  tag     INTEGER NOT NULL,
  last    INTEGER NOT NULL,  -- as in bide_limit
  -- 0: it is full, or has only leased messages; 1: its head competes; 2: its head waits for its rate; 3: it
  -- has nothing, and is remembered for its rate.
  place   INTEGER NOT NULL,
  rank    INTEGER,
  seq     INTEGER,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;
-- The order of heads: by priority, which a rank has above 2**42, then by tag.
CREATE INDEX bide_group_head ON bide_group (queue, rank / 4398046511104, tag, rank, seq) WHERE place = 1;
CREATE INDEX bide_group_last ON bide_group (queue, place, last, key) WHERE place <> 1;

-- All that is ready gets into lines. Those of version 4 may have been incomplete.
DELETE FROM bide_line;
INSERT INTO bide_line (queue, key, rank, seq)
SELECT p.queue, CASE WHEN m."group" IS NULL THEN '' ELSE '=' || m."group" END, p.rank, p.seq
FROM bide_limit l CROSS JOIN bide_pending p ON p.queue = l.queue AND p.state = 1
  CROSS JOIN bide_message m ON m.seq = p.seq;
INSERT INTO bide_group (queue, key, running, tag, last, place)
SELECT queue, key, running, 0, last, CASE WHEN running > 0 THEN 0 ELSE 3 END FROM bide_group_4;
DROP TABLE bide_group_4;
-- A head that its group's rate or limit holds back is found when it comes first.
INSERT OR REPLACE INTO bide_group (queue, key, running, tag, last, place, rank, seq)
SELECT l.queue, l.key, coalesce(g.running, 0), coalesce(g.tag, 0), coalesce(g.last, 0), 1, l.rank, l.seq
FROM (
  SELECT *, row_number() OVER (PARTITION BY queue, key ORDER BY rank, seq) AS nth FROM bide_line
) AS l LEFT JOIN bide_group g ON g.queue = l.queue AND g.key = l.key
WHERE l.nth = 1;
