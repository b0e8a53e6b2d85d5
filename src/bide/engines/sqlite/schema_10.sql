-- Version 10: 10:00 belongs to the hour that begins then. The table has another name than before: a process of an older
-- version that has the file open still would go on to round up.
DROP TABLE bide_due_hour;
CREATE TABLE bide_hour (  -- how many delayed and ready messages are due in each hour, see schema.sql
  queue INTEGER NOT NULL,
  hour  INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (queue, hour)
) WITHOUT ROWID;
-- Row by row: to group millions of rows SQLite would sort them, in memory.
INSERT INTO bide_hour (queue, hour, count)
SELECT queue, CASE state WHEN 0 THEN rank / 256 ELSE rank % 4398046511104 END / 3600000, 1 FROM bide_pending
WHERE seq <= (SELECT counted FROM bide_store)
ON CONFLICT (queue, hour) DO UPDATE SET count = count + 1;
