-- Statements of limited queues. See statements.sql for how they are written.

-- name: load_limit
SELECT {limits} FROM bide_limit WHERE queue = ?;

-- name: save_limit
INSERT OR REPLACE INTO bide_limit ({limits}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: load_group
SELECT key, running, turn, last, freed, waiting FROM bide_group WHERE queue = ? AND key = ?;

-- name: save_group
INSERT OR REPLACE INTO bide_group
  (key, running, turn, last, freed, waiting, queue, standing, rank)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: groups_standing
-- The first groups of a standing, up to a rank.
SELECT key, running, turn, last, freed, waiting FROM bide_group WHERE queue = ? AND standing = ? AND rank <= ?
ORDER BY rank, key LIMIT ?;

-- name: forget_groups
DELETE FROM bide_group WHERE queue = :queue AND key IN (
  SELECT key FROM bide_group WHERE queue = :queue AND standing = 3 AND rank <= :rank
  ORDER BY rank, key LIMIT :limit);

-- name: insert_line
INSERT INTO bide_line (queue, key, rank, seq) VALUES (?, ?, ?, ?);

-- name: drop_line
DELETE FROM bide_line WHERE queue = ? AND key = ? AND rank = ? AND seq = ?;

-- name: head
-- The first message of a line, whole.
SELECT {message}, 1, l.rank
FROM bide_line l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = ? AND l.key = ? ORDER BY l.rank, l.seq LIMIT 1;

-- name: in_line_before
SELECT seq FROM bide_line WHERE queue = ? AND key = ? AND (rank, seq) < (?, ?) LIMIT ?;

-- name: groups_of
SELECT "group" FROM bide_message WHERE seq IN (SELECT value FROM json_each(?));

-- name: unlined
-- The next ready messages after a place, and whether they are in a line.
SELECT m."group", p.rank, p.seq, EXISTS (
  SELECT 1 FROM bide_line l WHERE l.queue = p.queue AND l.rank = p.rank AND l.seq = p.seq
  AND l.key = CASE WHEN m."group" IS NULL THEN '' ELSE '=' || m."group" END)
FROM bide_pending p CROSS JOIN bide_message m ON m.seq = p.seq
WHERE p.queue = ? AND p.state = 1 AND (p.rank, p.seq) > (?, ?) ORDER BY p.rank, p.seq LIMIT ?;

-- name: groups_after
-- The next groups, by name, and whether they have a line.
WITH RECURSIVE named ("group") AS (
  SELECT min("group") FROM bide_message WHERE queue = :queue AND "group" > :after
  UNION ALL
  SELECT (SELECT min(m."group") FROM bide_message m WHERE m.queue = :queue AND m."group" > n."group")
  FROM named n WHERE n."group" IS NOT NULL
)
SELECT "group", EXISTS (SELECT 1 FROM bide_line WHERE queue = :queue AND key = '=' || "group")
FROM named WHERE "group" IS NOT NULL;

-- name: of_one_group
-- The messages of a group; a rank have those that are delayed.
SELECT p.rank, m.seq, m."group" FROM bide_message m
LEFT JOIN bide_pending p ON p.queue = m.queue AND p.state = 0
  AND p.rank = m.due * PRIORITIES + MAX_PRIORITY - m.priority AND p.seq = m.seq
WHERE m.queue = ? AND m."group" = ? LIMIT ?;

-- name: leased_by_group
SELECT m."group", count(*) FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = ? GROUP BY 1;

-- name: recount_groups
SELECT key, running, waiting, standing FROM bide_group WHERE queue = ?;

-- name: recount_lines
-- The messages in lines, by group: how many there are, and how many of them are ready.
SELECT l.key, count(*), count(p.seq) FROM bide_line l
LEFT JOIN bide_message m ON m.seq = l.seq
  AND l.key = CASE WHEN m."group" IS NULL THEN '' ELSE '=' || m."group" END
LEFT JOIN bide_pending p ON p.queue = l.queue AND p.state = 1 AND p.rank = l.rank AND p.seq = m.seq
WHERE l.queue = ? GROUP BY l.key;
