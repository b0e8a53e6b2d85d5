-- Statements of limited queues: see bide.engines.limiter for lines and heads, and statements.sql for how they
-- are written. Where a `place` is given, `place <> HEAD_COMPETES` is the condition of the index
-- `bide_group_last`, which SQLite does not use without it.

-- name: load_limit
SELECT {limits} FROM bide_limit WHERE queue = ?;

-- name: save_limit
INSERT OR REPLACE INTO bide_limit ({limits}) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: load_group
SELECT key, running, tag, last FROM bide_group WHERE queue = ? AND key = ?;

-- name: save_group
-- With the first message of its line. Parameters: the group, its place without a line, and with one; its key.
INSERT OR REPLACE INTO bide_group (queue, key, running, tag, last, place, rank, seq)
SELECT ?, ?, ?, ?, ?, iif(l.seq IS NULL, ?, ?), l.rank, l.seq
FROM (SELECT 1) LEFT JOIN (
  SELECT rank, seq FROM bide_line WHERE queue = ? AND key = ? ORDER BY rank, seq LIMIT 1
) AS l;

-- name: head
-- The head that comes first: the message, whole, and its group.
SELECT {message}, READY_STATE, g.rank, g.key, g.running, g.tag, g.last
FROM bide_group g LEFT JOIN bide_message m ON m.seq = g.seq
WHERE g.queue = ? AND g.place = HEAD_COMPETES ORDER BY g.rank / STRIPE, g.tag, g.rank, g.seq LIMIT 1;

-- name: first_head
SELECT key, running, tag, last FROM bide_group
WHERE queue = ? AND place = HEAD_COMPETES ORDER BY rank / STRIPE, tag, rank, seq LIMIT 1;

-- name: first_resting
SELECT key, running, tag, last FROM bide_group
WHERE queue = ? AND place = HEAD_WAITS AND place <> HEAD_COMPETES ORDER BY last, key LIMIT 1;

-- name: groups_at
SELECT key, running, tag, last FROM bide_group
WHERE queue = ? AND place = ? AND place <> HEAD_COMPETES AND last <= ? ORDER BY last, key LIMIT ?;

-- name: forget_groups
DELETE FROM bide_group WHERE queue = :queue AND key IN (
  SELECT key FROM bide_group
  WHERE queue = :queue AND place = IDLE_GROUP AND place <> HEAD_COMPETES AND last <= :served_until
  ORDER BY last, key LIMIT :most);

-- name: fill_lines
INSERT INTO bide_line (queue, key, rank, seq)
SELECT p.queue, iif(m."group" IS NULL, '', '=' || m."group"), p.rank, p.seq
FROM bide_pending p CROSS JOIN bide_message m ON m.seq = p.seq WHERE p.queue = ? AND p.state = READY_STATE;

-- name: fill_groups
-- The groups that have a line; none of them has been served. Parameters: the tag of all, and the queue.
INSERT INTO bide_group (queue, key, running, tag, last, place, rank, seq)
SELECT queue, key, 0, ?, 0, HEAD_COMPETES, rank, seq FROM (
  SELECT *, row_number() OVER (PARTITION BY key ORDER BY rank, seq) AS nth
  FROM bide_line WHERE queue = ?
) WHERE nth = 1;

-- name: insert_line
INSERT INTO bide_line (queue, key, rank, seq) VALUES (?, ?, ?, ?);

-- name: drop_line
DELETE FROM bide_line WHERE queue = ? AND key = ? AND rank = ? AND seq = ?;

-- name: in_line_before
SELECT seq FROM bide_line WHERE queue = ? AND key = ? AND (rank, seq) < (?, ?) LIMIT ?;

-- name: groups_of
SELECT "group" FROM bide_message WHERE seq IN (SELECT value FROM json_each(?));

-- name: leased_by_group
SELECT m."group", count(*) FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = ? GROUP BY 1;

-- name: recount_groups
-- With whether the message of its head is the first one in its line.
SELECT g.key, g.running, g.place, (g.rank, g.seq) IS (
  SELECT rank, seq FROM bide_line l WHERE l.queue = g.queue AND l.key = g.key ORDER BY rank, seq LIMIT 1)
FROM bide_group g WHERE g.queue = ?;

-- name: recount_lines
-- The messages in lines, by group: how many there are, and how many of them are ready.
SELECT l.key, count(*), count(p.seq) FROM bide_line l
LEFT JOIN bide_message m ON m.seq = l.seq
  AND l.key = CASE WHEN m."group" IS NULL THEN '' ELSE '=' || m."group" END
LEFT JOIN bide_pending p ON p.queue = l.queue AND p.state = READY_STATE AND p.rank = l.rank AND p.seq = m.seq
WHERE l.queue = ? GROUP BY l.key;
