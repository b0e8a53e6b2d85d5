-- The tables of a store, as version 1 makes them. Their names begin with bide_, so that the file of an
-- application may have them, too.
--
-- A message is a record in bide_message, and is in one of three places: pending, leased, or aside.
-- Times are Unix milliseconds, unless a table says otherwise.
-- States: 0 delayed, 1 ready, 2 leased, 3 dead, 4 acked, 5 expired.

-- One row.
CREATE TABLE bide_store (
  schema_version INTEGER NOT NULL,
  -- Up to which message the counters of the queues have counted. Only puts of a single message add some
  -- after it, so that such a put writes one page less; the next change of a queue counts them.
  counted        INTEGER NOT NULL
);
INSERT INTO bide_store VALUES (1, 0);

-- One row a queue: its settings, and counters that change in the transaction of the messages.
CREATE TABLE bide_queue (
  id         INTEGER PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,
  paused     INTEGER NOT NULL DEFAULT 0,
  keep       INTEGER NOT NULL DEFAULT 0,  -- how long acked messages are kept
  history    INTEGER NOT NULL DEFAULT 0,  -- how long ends of messages are remembered
  result_ttl INTEGER NOT NULL DEFAULT 0,  -- how long results are remembered
  limited    INTEGER NOT NULL DEFAULT 0,  -- whether it has a row in bide_limit
  weighted   INTEGER NOT NULL DEFAULT 0,  -- whether a priority other than 0 was ever used
  token      INTEGER NOT NULL,            -- the number of the last claim
  ended      INTEGER NOT NULL DEFAULT 0,  -- how many rows it has in bide_ended
  successors INTEGER NOT NULL DEFAULT 0,  -- how many rows it has in bide_successor
  -- How many messages are in each state; kept: acked and expired ones.
  delayed    INTEGER NOT NULL DEFAULT 0,
  ready      INTEGER NOT NULL DEFAULT 0,
  leased     INTEGER NOT NULL DEFAULT 0,
  dead       INTEGER NOT NULL DEFAULT 0,
  kept       INTEGER NOT NULL DEFAULT 0,
  -- How many messages something has happened to.
  put        INTEGER NOT NULL DEFAULT 0,
  acked      INTEGER NOT NULL DEFAULT 0,
  cancelled  INTEGER NOT NULL DEFAULT 0,
  expired    INTEGER NOT NULL DEFAULT 0,
  purged     INTEGER NOT NULL DEFAULT 0,
  died       INTEGER NOT NULL DEFAULT 0,
  revived    INTEGER NOT NULL DEFAULT 0,
  retried    INTEGER NOT NULL DEFAULT 0,
  lapsed     INTEGER NOT NULL DEFAULT 0
);

-- What a message is. A claim reads this row and writes none: with due times at random each message is a
-- separate page, and a batch costs as many pages as it writes.
CREATE TABLE bide_message (
  seq      INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  due      INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempt  INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  expires  INTEGER,           -- milliseconds after due
  "group"  TEXT,
  headers  TEXT,              -- JSON object
  failures TEXT,              -- JSON array of [attempt, time, holder, reason, started]
  planned  INTEGER,           -- the due time that was asked for, if a retry has changed it
  asked    INTEGER,           -- the due time that was asked for, if a revival has changed it
  created  INTEGER NOT NULL,  -- when it was first put; 0: an import does not know
  data              NOT NULL  -- TEXT: JSON; BLOB: bytes of the user's own
);
CREATE UNIQUE INDEX bide_message_id ON bide_message (queue, id);
CREATE INDEX bide_message_group ON bide_message (queue, "group") WHERE "group" IS NOT NULL;

-- Delayed and ready messages by rank. Both ranks follow from due and priority, so that a message is found
-- here by its own columns.
CREATE TABLE bide_pending (
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  rank  INTEGER NOT NULL,
  seq   INTEGER NOT NULL,
  PRIMARY KEY (queue, state, rank, seq)
) WITHOUT ROWID;

-- How many delayed and ready messages are due in each hour, so that a forecast reads a row an hour instead
-- of an entry a message. `hour` is the due time in hours, rounded up: schema_10.sql has the table of today.
CREATE TABLE bide_due_hour (
  queue INTEGER NOT NULL,
  hour  INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (queue, hour)
) WITHOUT ROWID;

-- Leased messages: few at a time, whatever is pending.
CREATE TABLE bide_lease (
  seq      INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  token    INTEGER NOT NULL,
  since    INTEGER NOT NULL,  -- when the holder got it
  until    INTEGER NOT NULL,
  holder   TEXT    NOT NULL,
  extended INTEGER NOT NULL DEFAULT 0  -- how often the lease was extended
);
CREATE INDEX bide_lease_until ON bide_lease (queue, until);

-- Successors of leased messages: what puts with `latest` have stored meanwhile, which takes the place of
-- the message when its lease ends.
CREATE TABLE bide_successor (
  queue INTEGER NOT NULL,
  id    TEXT    NOT NULL,
  item  TEXT    NOT NULL,  -- an Item of bide.model.message, as JSON
  PRIMARY KEY (queue, id)
);

-- Messages set aside: dead letters, and acked and expired ones that are kept.
CREATE TABLE bide_aside (
  seq   INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  ended INTEGER NOT NULL
);
CREATE INDEX bide_aside_ended ON bide_aside (queue, state, ended);

-- What queues remember of messages that have ended, if they do: an end of an id is a row, and an id may
-- have several. `how` is a place in ENDINGS of bide.model.ended.
CREATE TABLE bide_ended (
  seq      INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  how      INTEGER NOT NULL,
  moment   INTEGER NOT NULL,
  "by"     TEXT,
  due      INTEGER NOT NULL,
  attempt  INTEGER NOT NULL,
  since    INTEGER,           -- as in bide_lease, if it was leased
  failures TEXT,              -- as in bide_message
  result   TEXT               -- JSON
);
CREATE INDEX bide_ended_id ON bide_ended (queue, id);
CREATE INDEX bide_ended_moment ON bide_ended (queue, moment);

-- The last pauses of each queue; `until` is empty while the pause lasts.
CREATE TABLE bide_pause (
  queue INTEGER NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  actor TEXT
);
CREATE INDEX bide_pause_queue ON bide_pause (queue);

-- The rows of outboxes whose commands were executed, until they are deleted there; see `Origin` in
-- bide.model.command_parts.
CREATE TABLE bide_forwarded (
  queue  INTEGER NOT NULL,
  outbox TEXT    NOT NULL,
  row    TEXT    NOT NULL,
  PRIMARY KEY (queue, outbox, row)
) WITHOUT ROWID;

-- Limited queues, in which groups take turns; other queues have no rows in the next three tables, whose
-- times are Unix microseconds, but `freed` is milliseconds. See bide.model.times and bide.model.rank.
CREATE TABLE bide_limit (
  queue       INTEGER PRIMARY KEY,
  "limit"     INTEGER NOT NULL,
  rate        INTEGER NOT NULL,  -- the interval from one message to the next; 0: no limit
  group_limit INTEGER NOT NULL,
  group_rate  INTEGER NOT NULL,
  turn        INTEGER NOT NULL,  -- the number of the group that entered last
  last        INTEGER NOT NULL,  -- when the last message counts as served
  freed       INTEGER NOT NULL,  -- when a lease ended last while the queue was full
  rank        INTEGER,           -- up to which ready messages are in lines; empty: all are
  seq         INTEGER,
  looked      TEXT    NOT NULL   -- the last group that a claim has looked ahead at; empty: no more
);

-- Groups that have messages in line or leased, or whose rate holds them. `key` is "=" and the name, or
-- empty for messages without a group.
CREATE TABLE bide_group (
  queue    INTEGER NOT NULL,
  key      TEXT    NOT NULL,
  running  INTEGER NOT NULL,     -- how many of its messages are leased
  waiting  INTEGER NOT NULL,     -- how many are in line
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
