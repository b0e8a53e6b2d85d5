-- Version 4: to ask the holder of a message to stop, and its reports. All of them are null where it is not leased.
ALTER TABLE bide.message
  ADD COLUMN stopping text,  -- who has asked; empty: somebody who gave no name
  ADD COLUMN progress text,  -- the last report: a Progress of bide.model.message as JSON
  ADD COLUMN process  text;  -- which process has claimed it, if that listens to notifications

CREATE OR REPLACE VIEW bide._message AS
SELECT seq, queue, id, is_json, data, due, priority, attempt, attempts, expires, "group", headers,
       failures, state, rank, holder, planned, asked, created, successor,
       size + coalesce(octet_length(failures), 0) AS size, stopping, progress
FROM bide.message;
