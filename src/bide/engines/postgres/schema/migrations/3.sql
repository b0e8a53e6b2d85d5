-- Version 3: the answers of batches whose sender repeats them if the reply was lost; see
-- `functions/2_answers.sql`. Each batch adds a row, so that an old snapshot makes none slower.
CREATE TABLE bide.answer (
  sender  text COLLATE "C" NOT NULL,
  number  bigint NOT NULL,  -- of the batch
  seen    bigint NOT NULL,  -- when it was executed
  answers text,             -- JSON: by places of commands; see bide.engines.postgres.answers
  PRIMARY KEY (sender, number)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
