-- Version 2: the last returns of messages to an earlier state, or to an earlier place in it, for scans that are
-- under way; see `goes_by_set` in bide.engines.cursor. `number` is that of the transaction.
CREATE TABLE bide.returned (
  number bigint  NOT NULL,
  queue  integer NOT NULL,
  id     text COLLATE "C" NOT NULL,
  PRIMARY KEY (number, queue, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- What a scan begins after where no message has returned yet. In an older store open transactions may have
-- returned some without a row: scans read all by id until `_fold` adds the first.
INSERT INTO bide.returned SELECT 0, 0, '' WHERE NOT EXISTS (SELECT FROM bide.store);
