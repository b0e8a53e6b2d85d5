-- Limited queues: see `functions/3_turns.sql`. What a queue without limits needs of it is a column
-- that is null.
CREATE TABLE bide.limited (
  id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue       integer NOT NULL,
  "limit"     bigint  NOT NULL DEFAULT 0,  -- how many may be leased at a time; 0: any number
  rate        bigint  NOT NULL DEFAULT 0,  -- microseconds from one delivery to the next; 0: none
  group_limit bigint  NOT NULL DEFAULT 0,  -- the same of each group
  group_rate  bigint  NOT NULL DEFAULT 0,
  turn        bigint  NOT NULL DEFAULT 0,  -- how many messages were served
  running     bigint  NOT NULL DEFAULT 0,  -- how many are leased, when `lease_end` is empty
  last        bigint  NOT NULL DEFAULT 0,  -- when the last one counts as served, in microseconds
  freed       bigint  NOT NULL DEFAULT 0,  -- when a lease ended last while the queue was full
  -- What was ready before the limits gets into lines up to this place; null: all of it.
  lined       bigint[] DEFAULT '{-1,-1}',  -- rank and seq
  horizon     bigint,                      -- see `_line_up`
  settled     boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- The groups of limited queues that have a line or leases, or are held by their rate. `standing`: 0 full,
-- or leased messages only; 1 takes turns; 2 waits for its rate, or to be forgotten.
CREATE TABLE bide.turn (
  limited  integer  NOT NULL,
  name     text COLLATE "C" NOT NULL,      -- empty: messages without a group
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
-- that was empty. Whoever changes a message adds a row, so that nobody waits for a claim.
CREATE TABLE bide.lease_end (
  seq     bigint  GENERATED ALWAYS AS IDENTITY,
  limited integer NOT NULL,
  name    text COLLATE "C" NOT NULL,
  ended   bigint  NOT NULL,                -- how many leases
  entered boolean NOT NULL,
  moment  bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX lease_end_limited ON bide.lease_end (limited);

ALTER TABLE bide.queue ADD COLUMN limited integer;
-- Under which limits a message became ready or was leased: the lines are the index.
ALTER TABLE bide.message ADD COLUMN limited integer;
CREATE INDEX message_line ON bide.message (limited, coalesce("group", ''), rank, seq)
  WHERE limited IS NOT NULL AND state = 1;

-- For `_within`.
ALTER TYPE bide._asked ADD ATTRIBUTE limits bigint[];
