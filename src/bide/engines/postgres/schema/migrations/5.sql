-- Version 5: limited queues of lines, heads and tags: see bide.engines.limiter and `functions/3_lines.sql`.
-- First what others write before they read the limits: in the other order both would wait for each other.
LOCK TABLE bide.lease_end, bide.turn IN ACCESS EXCLUSIVE MODE;

ALTER TABLE bide.limited
  DROP COLUMN turn, DROP COLUMN freed, DROP COLUMN looked,
  ADD COLUMN tag bigint NOT NULL DEFAULT 0;  -- of the head that was served last

-- The groups of limited queues that have a line or leases, or are held by their rate. Of a group with a
-- line, `rank` and `seq` are those of the first message in it.
CREATE TABLE bide.limited_group (
  limited integer  NOT NULL,
  name    text COLLATE "C" NOT NULL,   -- empty: messages without a group
  running bigint   NOT NULL,           -- how many are leased, when `reopened` is empty
  tag     bigint   NOT NULL,
  last    bigint   NOT NULL DEFAULT 0, -- when the last one counts as served, in microseconds
  -- 0: it is full, or has only leased messages; 1: its head competes; 2: its head waits for its rate; 3: it
  -- has nothing, and is remembered for its rate.
  place   smallint NOT NULL,
  rank    bigint,
  seq     bigint,
  PRIMARY KEY (limited, name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- The order of heads: by priority, which a rank has above 2^42, then by tag.
CREATE INDEX limited_group_head ON bide.limited_group (limited, (rank / 4398046511104), tag, rank, seq) WHERE place = 1;
CREATE INDEX limited_group_last ON bide.limited_group (limited, place, last, name) WHERE place > 1;

-- Groups of which something has changed since the last claim: leases have ended, or messages have left
-- the line or come into it. A change of a message adds a row, so that it does not wait for a claim.
CREATE TABLE bide.reopened (
  limited integer NOT NULL,
  name    text COLLATE "C" NOT NULL,
  ended   bigint  NOT NULL  -- how many leases
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX reopened_limited ON bide.reopened (limited);
ALTER TABLE bide.reopened REPLICA IDENTITY FULL;

-- The first claim of each queue gives all groups their heads.
INSERT INTO bide.limited_group (limited, name, running, tag, last, place)
SELECT limited, name, running, 0, last, CASE WHEN running > 0 THEN 0 ELSE 3 END FROM bide.turn;
INSERT INTO bide.reopened SELECT limited, name, ended FROM bide.lease_end;
INSERT INTO bide.reopened SELECT limited, name, 0 FROM bide.turn;
DROP TABLE bide.turn, bide.lease_end;

-- A message that a claim of a limited queue serves, by the place of its row.
DROP TYPE bide._head;
CREATE TYPE bide._head AS (place tid, name text, tag bigint, due bigint, late boolean);
