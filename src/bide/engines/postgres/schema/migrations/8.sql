-- Version 8: messages that repeat, see bide.model.repeat. Programs of an older version, which cannot plan
-- the next run, are refused at their next claim: its argument `waiter` has another name.
ALTER TABLE bide.message
  ADD COLUMN rule text,  -- by which rule it repeats, for those who claim it; null: it does not
  ADD COLUMN run  text;  -- which run it is; one that begins with "ended " has ended, and no next one is planned

CREATE OR REPLACE VIEW bide._message AS
SELECT seq, queue, id, is_json, data, due, priority, attempt, attempts, expires, "group", headers,
       failures, state, rank, holder, planned, asked, created, successor,
       size + coalesce(octet_length(failures), 0) AS size, stopping, progress, rule, run
FROM bide.message;

ALTER TYPE bide._asked ADD ATTRIBUTE rules text[], ADD ATTRIBUTE runs text[];
