-- Version 3.

-- The answers of batches whose sender repeats them if the reply was lost; see
-- `functions/2_answers.sql`. Each batch adds a row, so that an old snapshot makes none slower.
CREATE TABLE bide.answer (
  sender  text COLLATE "C" NOT NULL,
  number  bigint NOT NULL,  -- of the batch
  seen    bigint NOT NULL,  -- when it was executed
  answers text,             -- JSON: by places of commands; see bide.engines.postgres.answers
  PRIMARY KEY (sender, number)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- When answers were forgotten last: that reads all of them, so `_fold` does it once a second.
ALTER TABLE bide.store ADD COLUMN forgot bigint NOT NULL DEFAULT 0;

-- The channel of notifications. Its name is known to those only who may use the store: anybody may listen
-- to a channel, and notify on it.
ALTER TABLE bide.store
  ADD COLUMN channel text NOT NULL DEFAULT 'bide_' || replace(gen_random_uuid()::text, '-', '');

-- One row: what `_tag` makes names unreadable with, for those who may use only other queues.
CREATE TABLE bide.secret (key text PRIMARY KEY);
INSERT INTO bide.secret VALUES (gen_random_uuid()::text);
