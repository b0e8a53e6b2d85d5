-- Tables and views. Rows that change often are narrow, and all of a message is in one row. PostgreSQL keeps
-- values of more than some 2 kB apart by itself, and no claim copies them.

-- One row: which version of these files made the schema.
CREATE TABLE bide.store (version integer NOT NULL);

CREATE TABLE bide.queue (
  id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text COLLATE "C" NOT NULL UNIQUE,
  paused     boolean NOT NULL DEFAULT false,
  keep       bigint  NOT NULL DEFAULT 0,      -- milliseconds for which acked messages are remembered
  history    bigint  NOT NULL DEFAULT 0,      -- the same of ends
  result_ttl bigint  NOT NULL DEFAULT 0,      -- and of their results
  weighted   boolean NOT NULL DEFAULT false,  -- whether a message with a priority was ever put
  remembers  boolean NOT NULL DEFAULT false,  -- whether a message was ever remembered after its end
  ends       boolean NOT NULL DEFAULT false,  -- whether an end was ever remembered
  lease      bigint,                          -- the shortest lease ever, in ms: claims need not look
                                              -- for leases that end sooner
  limited    integer                          -- null for queues without limits
);

-- The last pauses of each queue. `until` is null while the pause lasts.
CREATE TABLE bide.pause (
  seq   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue integer NOT NULL,
  since bigint  NOT NULL,
  until bigint,
  actor text
);

-- Which queues a role may use, beside the owner of the schema, who may use all.
CREATE TABLE bide.access (
  role   name   PRIMARY KEY,
  queues text[] NOT NULL  -- patterns as for LIKE
);

-- The number of a put; and those of claims, which are the fencing tokens. A token is larger than those
-- of a store that was lost, because the first is the time of day.
CREATE SEQUENCE bide.seq;
CREATE SEQUENCE bide.token;
SELECT setval('token', (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- A message. Times are Unix milliseconds. The rank is the order within the state.
--
-- | state | rank |
-- |---|---|
-- | 0 delayed | due * 256 + 255 - priority |
-- | 1 ready | (255 - priority) * 2^42 + due |
-- | 2 leased | when the lease lapses |
-- | 3 dead, 4 acked, 5 expired | when it came there |
CREATE TABLE bide.message (
  seq       bigint   NOT NULL,  -- the order of putting: number of the put * 2^20 + place in it
  rank      bigint   NOT NULL,
  due       bigint   NOT NULL,
  created   bigint   NOT NULL,  -- when it was first put; 0 if an import does not know
  expires   bigint,             -- milliseconds after due
  planned   bigint,             -- the due time asked for, where a retry has moved it,
  asked     bigint,             -- and where a revival has
  token     bigint,
  since     bigint,             -- when the lease began
  queue     integer  NOT NULL,
  attempts  integer  NOT NULL,  -- how many there may be
  attempt   integer  NOT NULL,  -- how many have ended
  size      integer  NOT NULL,  -- bytes of the id, the body and the headers
  extended  integer,            -- how often the lease was extended
  limited   integer,            -- under which limits it became ready or was leased
  state     smallint NOT NULL,
  priority  smallint NOT NULL,
  is_json   boolean  NOT NULL,  -- whether the body is JSON text, and not bytes of the user's own
  id        text COLLATE "C" NOT NULL,
  "group"   text COLLATE "C",
  holder    text,
  headers   text,               -- JSON object
  failures  text,               -- JSON array of [attempt, time, holder, reason, started]
  successor text,               -- what a put with `latest` has stored while it was leased, for the time
                                -- when the lease ends: JSON, with the body in hex
  data      bytea    NOT NULL,  -- the body, byte for byte
  UNIQUE (queue, id)
) WITH (
  -- Vacuum at full speed: with the default delay it clears fewer pages than a busy worker fills.
  fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
-- Only queries by rank can use this index, whatever the planner believes of the table: see `functions/8_planning.sql`.
CREATE INDEX message_rank ON bide.message (queue, state, rank, seq) WHERE state >= 0;
CREATE INDEX message_group ON bide.message (queue, "group", seq) WHERE "group" IS NOT NULL;
-- The lines of limited queues.
CREATE INDEX message_line ON bide.message (limited, coalesce("group", ''), rank, seq)
  WHERE limited IS NOT NULL AND state = 1;

-- A message as callers see it.
CREATE VIEW bide._message AS
SELECT seq, queue, id, is_json, data, due, priority, attempt, attempts, expires, "group", headers,
       failures, state, rank, holder, planned, asked, created, successor,
       size + coalesce(octet_length(failures), 0) AS size
FROM bide.message;

-- Ranks below which claims would not look, at which delayed messages were put nevertheless: those whose
-- due time was past already.
CREATE TABLE bide.lowered (
  queue integer NOT NULL,
  rank  bigint  NOT NULL
);

-- What queues remember of messages that have ended, if they do: an end of an id is a row, and an id may
-- have several. `how` is a place in ENDINGS of bide.model.ended.
CREATE TABLE bide.ended (
  seq      bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  moment   bigint   NOT NULL,
  due      bigint   NOT NULL,
  since    bigint,
  queue    integer  NOT NULL,
  attempt  integer  NOT NULL,
  how      smallint NOT NULL,
  id       text COLLATE "C" NOT NULL,
  by       text,
  failures text,  -- as in `message`
  result   text   -- JSON
);
CREATE INDEX ended_id ON bide.ended (queue, id, seq);
CREATE INDEX ended_moment ON bide.ended (queue, moment);

-- Changes of the counters. Each transaction adds new rows, so that none waits for another;
-- `_fold` adds them up in `total` now and then. `hour` is the due time of pending messages in hours,
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

-- A put adds one row to `tally`, for what two counters count.
CREATE VIEW bide._part AS
SELECT whole, part FROM (VALUES ('new', 'pending'), ('new', 'put')) AS parts(whole, part);

-- What the counters say, by name and hour, and of how many changes that are not in `total` yet.
CREATE VIEW bide._counter AS
SELECT queue, what, hour, sum(n)::bigint AS n, sum(delta) AS deltas FROM (
  SELECT queue, what, hour, count AS n, 0 AS delta FROM bide.total
  UNION ALL
  SELECT queue, coalesce(part, what), CASE WHEN part = 'put' THEN -1 ELSE hour END, by, 1
  FROM bide.tally LEFT JOIN bide._part ON whole = what
) AS both_parts GROUP BY queue, what, hour;

-- Processes that wait for a message, and until when: a put wakes only those that would sleep past its due
-- time. `queue` may be a queue, a space and an id: the process waits for the end of that message.
CREATE TABLE bide.sleeper (
  process text    NOT NULL,
  queue   text    NOT NULL,
  until   bigint  NOT NULL,
  seen    bigint  NOT NULL,  -- when it last said so
  PRIMARY KEY (queue, process)
) WITH (fillfactor = 50);

-- The rows of outboxes whose commands were executed, until they are deleted there; see bide.model.command_parts.
CREATE TABLE bide.forwarded (
  queue  text COLLATE "C" NOT NULL,
  outbox text COLLATE "C" NOT NULL,
  name   text COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, outbox, name)
);

-- Limited queues: see `functions/3_lines.sql`. Another row where the limits were taken away and given
-- again.
CREATE TABLE bide.limited (
  id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue       integer NOT NULL,
  "limit"     bigint  NOT NULL DEFAULT 0,  -- how many may be leased at a time; 0: any number
  rate        bigint  NOT NULL DEFAULT 0,  -- microseconds from one delivery to the next; 0: none
  group_limit bigint  NOT NULL DEFAULT 0,  -- the same of each group
  group_rate  bigint  NOT NULL DEFAULT 0,
  turn        bigint  NOT NULL DEFAULT 0,  -- the number of the group that entered last
  running     bigint  NOT NULL DEFAULT 0,  -- how many are leased, when `lease_end` is empty
  last        bigint  NOT NULL DEFAULT 0,  -- when the last one counts as served, in microseconds
  freed       bigint  NOT NULL DEFAULT 0,  -- when a lease ended last while the queue was full
  -- What was ready before the limits gets into lines up to this place; null: all of it.
  lined       bigint[] DEFAULT '{-1,-1}',  -- rank and seq
  horizon     bigint,                      -- see `_line_up`
  settled     boolean NOT NULL DEFAULT false,
  looked      text COLLATE "C" NOT NULL DEFAULT ''  -- the last group that a claim has looked ahead at;
                                                    -- empty: there were no more
) WITH (fillfactor = 50);

-- The groups of limited queues that have a line or leases, or are held by their rate. `standing`: 0 full,
-- or leased messages only; 1 takes turns; 2 waits for its rate, or to be forgotten.
CREATE TABLE bide.turn (
  limited  integer  NOT NULL,
  name     text COLLATE "C" NOT NULL,  -- empty: messages without a group
  standing smallint NOT NULL,
  turn     bigint   NOT NULL,
  running  bigint   NOT NULL DEFAULT 0,
  last     bigint   NOT NULL DEFAULT 0,
  freed    bigint   NOT NULL DEFAULT 0,
  PRIMARY KEY (limited, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX turn_next ON bide.turn (limited, turn, name) WHERE standing = 1;
CREATE INDEX turn_resting ON bide.turn (limited, last, name) WHERE standing = 2;

-- What happened to groups since the last claim: leases that ended, and messages that came into a line
-- that was empty. A change of a message adds a row, so that it does not wait for a claim.
CREATE TABLE bide.lease_end (
  seq     bigint  GENERATED ALWAYS AS IDENTITY,
  limited integer NOT NULL,
  name    text COLLATE "C" NOT NULL,
  ended   bigint  NOT NULL,  -- how many leases
  entered boolean NOT NULL,
  moment  bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX lease_end_limited ON bide.lease_end (limited);

-- What identifies rows where a publication for logical replication has all tables of the database:
-- without it no row can be changed or deleted then. It costs nothing elsewhere.
ALTER TABLE bide.message REPLICA IDENTITY USING INDEX message_queue_id_key;
ALTER TABLE bide.store REPLICA IDENTITY FULL;
ALTER TABLE bide.tally REPLICA IDENTITY FULL;
ALTER TABLE bide.lowered REPLICA IDENTITY FULL;
ALTER TABLE bide.lease_end REPLICA IDENTITY FULL;

-- What the functions for people answer.
CREATE TYPE bide.outcome AS (
  id    text,
  done  boolean,      -- whether the message was changed as asked
  state text,         -- the state it is in now; null: it is not in the queue
  due   timestamptz
);

-- A message that a claim of a limited queue serves, by the place of its row.
CREATE TYPE bide._head AS (place tid, name text, round bigint, freed bigint, last bigint, due bigint);

-- A command of `_within` as Python sends it: what it has not is null. Of a put, arrays as `_put` takes
-- them, the first due time and the shortest delay.
CREATE TYPE bide._asked AS (
  verb text, queue text, ids text[], is_json boolean[], data bytea[], at bigint[], delay bigint[],
  priority bigint[], attempts bigint[], expires bigint[], groups text[], headers text[],
  new_due bigint, new_delay bigint, if_due bigint, of_group text, after bigint, before bigint,
  keep bigint, actor text, history bigint, result_ttl bigint, limits bigint[], latest bigint[]
);
CREATE TYPE bide._asked_all AS (database text, now bigint, commands bide._asked[]);
