-- Version 2. How many delayed and ready messages are due in each hour, so that a forecast reads a row
-- an hour instead of an entry a message. `hour` is the due time in hours, rounded up: a message that
-- is due at exactly 10:00 belongs to the hour that ends then.
CREATE TABLE bide_due_hour (
  queue INTEGER NOT NULL,
  hour  INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (queue, hour)
) WITHOUT ROWID;

-- Messages after `counted` are in no counter yet.
INSERT INTO bide_due_hour (queue, hour, count)
SELECT queue, (CASE state WHEN 0 THEN rank >> 8 ELSE rank & 4398046511103 END + 3599999) / 3600000,
       count(*)
FROM bide_pending WHERE seq <= (SELECT counted FROM bide_store) GROUP BY 1, 2;
