-- Version 10: `hour` in bide_due_hour is the due time in hours, rounded down: 10:00 belongs to the hour that begins then.
-- Row by row: to group millions of rows SQLite would sort them, in memory.
DELETE FROM bide_due_hour;
INSERT INTO bide_due_hour (queue, hour, count)
SELECT queue, CASE state WHEN 0 THEN rank / 256 ELSE rank % 4398046511104 END / 3600000, 1 FROM bide_pending
WHERE seq <= (SELECT counted FROM bide_store)
ON CONFLICT (queue, hour) DO UPDATE SET count = count + 1;
