-- Version 14: `hour` in bide.tally and bide.total is the due time in hours, rounded down: 10:00 belongs to the hour that
-- begins then. Nobody changes messages meanwhile, and so none of these counters; who reads goes on.
LOCK TABLE bide.message IN EXCLUSIVE MODE;
INSERT INTO bide.tally SELECT queue, 'put', -1, sum(by) FROM bide.tally WHERE what = 'new' GROUP BY queue;
DELETE FROM bide.tally WHERE what IN ('new', 'pending');
DELETE FROM bide.total WHERE what = 'pending';
INSERT INTO bide.total
SELECT queue, 'pending', due / 3600000, count(*) FROM bide.message WHERE state < 2 GROUP BY queue, due / 3600000;
