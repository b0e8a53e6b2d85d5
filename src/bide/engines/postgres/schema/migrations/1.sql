-- Tables. What changes often is narrow: a claim writes a row of `message` and no `content`.

-- One row: which version of these files made the schema.
CREATE TABLE bide.store (version integer NOT NULL);

CREATE TABLE bide.queue (
  id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name     text COLLATE "C" NOT NULL UNIQUE,
  paused   boolean NOT NULL DEFAULT false,
  keep     bigint  NOT NULL DEFAULT 0,    -- milliseconds for which acked messages are remembered
  weighted boolean NOT NULL DEFAULT false -- whether a message with a priority was ever put
);

-- Which queues a role may use, beside the owner of the schema, who may use all.
CREATE TABLE bide.access (
  role   name   PRIMARY KEY,
  queues text[] NOT NULL  -- patterns as for LIKE
);

-- The order of putting; and the numbers of claims, which are the fencing tokens. A token is larger
-- than those of a store that was lost, because the first is the time of day.
CREATE SEQUENCE bide.seq;
CREATE SEQUENCE bide.token;
SELECT setval('token', (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- Where a message stands: one narrow row each, which every change locks. The rank is the order within
-- the state.
--
-- | state | rank |
-- |---|---|
-- | 0 delayed | due * 256 + 255 - priority |
-- | 1 ready | (255 - priority) * 2^42 + due |
-- | 2 leased | when the lease lapses |
-- | 3 dead, 4 acked, 5 expired | when it came there |
CREATE TABLE bide.message (
  seq      bigint   NOT NULL,  -- the order of putting
  rank     bigint   NOT NULL,
  due      bigint   NOT NULL,
  queue    integer  NOT NULL,
  attempts integer  NOT NULL,  -- how many there may be
  attempt  integer  NOT NULL,  -- how many have ended
  size     integer  NOT NULL,  -- bytes of the id, the body and the headers
  state    smallint NOT NULL,
  priority smallint NOT NULL,
  expires  bigint,             -- milliseconds after due
  planned  bigint,             -- the due time asked for, where a retry has moved it
  token    bigint,
  id       text COLLATE "C" NOT NULL,
  "group"  text COLLATE "C",
  holder   text,
  failures text,               -- JSON array of [attempt, moment, holder, reason, started]
  UNIQUE (queue, id)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE UNIQUE INDEX message_rank ON bide.message (queue, state, rank, seq);
CREATE INDEX message_group ON bide.message (queue, "group", seq) WHERE "group" IS NOT NULL;

-- What a message says: written once, read by claims, deleted at the end.
CREATE TABLE bide.content (
  seq     bigint  PRIMARY KEY,
  is_json boolean NOT NULL,  -- whether the body is JSON text, and not bytes of the user's own
  data    bytea   NOT NULL,  -- the body, byte for byte
  headers text               -- JSON object
);

-- Changes of the counters. Each transaction adds rows of its own, so that nobody waits for another;
-- `fold` adds them up in `total` now and then. `hour` is the due time of pending messages in hours,
-- rounded up, and -1 for everything else.
CREATE TABLE bide.tally (
  queue integer NOT NULL,
  what  text    NOT NULL,
  hour  integer NOT NULL,
  by    bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE bide.total (
  queue integer NOT NULL,
  what  text    NOT NULL,
  hour  integer NOT NULL,
  count bigint  NOT NULL,
  PRIMARY KEY (queue, what, hour)
) WITH (fillfactor = 50);

-- Who waits for a message, and until when: a put wakes only those who would sleep past its due time.
CREATE TABLE bide.sleeper (
  process text    NOT NULL,
  queue   text    NOT NULL,
  until   bigint  NOT NULL,  -- Unix milliseconds
  seen    bigint  NOT NULL,  -- when it last said so
  PRIMARY KEY (queue, process)
) WITH (fillfactor = 50);

-- What the functions for people answer.
CREATE TYPE bide.outcome AS (
  id    text,
  done  boolean,      -- whether the message was changed as asked
  state text,         -- the state it is in now; null: it is not in the queue
  due   timestamptz
);
