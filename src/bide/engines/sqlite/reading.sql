-- Scans and counts: statements that change nothing. See statements.sql for how they are written.

-- name: by_id
-- By the name of the queue: of its row no more is needed.
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM bide_message m LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE m.queue = (SELECT id FROM bide_queue WHERE name = ?) AND m.id = ?;

-- name: scan_all
-- By id: an order that no change of a message changes.
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM bide_message m LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE m.queue = ? AND m.id >= ? AND m.id < ? ORDER BY m.id LIMIT ?;

-- name: scan_all_unbounded
-- The same where the file, made by another program, has UTF-16: its order is not that of the bounds.
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM bide_message m LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE m.queue = ? AND m.id > ? ORDER BY m.id;

-- name: encoding
PRAGMA encoding;

-- name: scan_group
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM bide_message m LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE m.queue = :queue AND m."group" = :group AND m.seq > :seq
  AND m.due >= :after AND m.due < :before
ORDER BY m.seq LIMIT :limit;

-- name: scan_returned
-- Those that have returned since a number, as they were put: an order that no return changes.
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM (SELECT DISTINCT seq FROM bide_return WHERE number > :rank AND seq > :seq) AS r
  CROSS JOIN bide_message m ON m.seq = r.seq
  LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE m.queue = :queue AND m.due >= :after AND m.due < :before
ORDER BY m.seq LIMIT :limit;

-- name: scan_rest
-- All messages, as they were put.
SELECT {message}, coalesce(a.state, LEASED_STATE * (l.seq IS NOT NULL)), 0, {lease}, a.ended, s.item
FROM bide_message m LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE +m.queue = :queue AND m.seq > :seq AND m.due >= :after AND m.due < :before
ORDER BY m.seq LIMIT :limit;

-- name: last_return
SELECT coalesce(max(number), 0) FROM bide_return;

-- name: scan_pending
SELECT {message}, p.state, p.rank
FROM bide_pending p CROSS JOIN bide_message m ON m.seq = p.seq
WHERE p.queue = :queue AND p.state = :state AND (p.rank, p.seq) > (:rank, :seq) AND p.rank <= :reach
  AND CASE p.state WHEN DELAYED_STATE THEN p.rank / PRIORITIES ELSE p.rank % STRIPE END BETWEEN :after AND :before - 1
  AND (:group IS NULL OR m."group" = :group)
ORDER BY p.rank, p.seq LIMIT :limit;

-- name: scan_leased
SELECT {message}, LEASED_STATE, l.until, {lease}, NULL, s.item
FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id
WHERE l.queue = :queue AND (l.until, l.seq) > (:rank, :seq)
  AND m.due >= :after AND m.due < :before AND (:group IS NULL OR m."group" = :group)
ORDER BY l.until, l.seq LIMIT :limit;

-- name: scan_aside
SELECT {message}, a.state, a.ended, NULL, NULL, NULL, NULL, 0, NULL, NULL, a.ended, NULL
FROM bide_aside a CROSS JOIN bide_message m ON m.seq = a.seq
WHERE a.queue = :queue AND a.state = :state AND (a.ended, a.seq) > (:rank, :seq)
  AND m.due >= :after AND m.due < :before AND (:group IS NULL OR m."group" = :group)
ORDER BY a.ended, a.seq LIMIT :limit;

-- name: oldest_ready
-- The first of the ready messages from a rank on: asked once for each weight that is there.
SELECT rank FROM bide_pending WHERE queue = ? AND state = READY_STATE AND rank >= ?
ORDER BY rank LIMIT 1;

-- name: forecast
SELECT (rank / PRIORITIES - :start) / :bucket AS number, count(*) FROM bide_pending
WHERE queue = :queue AND state = DELAYED_STATE AND rank > :first AND rank <= :last
GROUP BY number;

-- name: recount_pending
SELECT state, count(*) FROM bide_pending WHERE queue = ? GROUP BY state;

-- name: recount_leased
SELECT count(*) FROM bide_lease WHERE queue = ?;

-- name: recount_aside
SELECT state, count(*) FROM bide_aside WHERE queue = ? GROUP BY state;

-- name: stored
-- The bytes of all messages: the length of a text would be in characters.
SELECT coalesce(sum(
  length(CAST(id AS BLOB)) + length(CAST(data AS BLOB))
  + coalesce(length(CAST("group" AS BLOB)), 0) + coalesce(length(CAST(headers AS BLOB)), 0)
  + coalesce(length(CAST(failures AS BLOB)), 0)), 0)
FROM bide_message WHERE queue = ?;

-- name: stored_ends
SELECT coalesce(sum(
  ROW_BYTES + coalesce(length(CAST("by" AS BLOB)), 0) + coalesce(length(CAST(failures AS BLOB)), 0)
  + coalesce(length(CAST(result AS BLOB)), 0)), 0)
FROM bide_ended WHERE queue = ?;

-- name: ends
SELECT how, moment, "by", due, attempt, since, failures, CASE WHEN moment > :fresh THEN result END
FROM bide_ended WHERE queue = :queue AND id = :id AND +moment > :since ORDER BY seq DESC LIMIT :limit;

-- name: last_ends
-- Ends from the first one on, some of them, in the order of a list, and whether each is the last one of its id.
-- By the index of moments: only those of one millisecond are sorted, by id in the encoding of the file.
SELECT id, moment,
  NOT EXISTS (SELECT 1 FROM bide_ended n WHERE n.queue = e.queue AND n.id = e.id AND n.seq > e.seq),
  how, moment, "by", due, attempt, since, failures, NULL
FROM bide_ended e
WHERE queue = :queue AND moment >= :first AND moment < :before AND (moment > :moment OR id > :id)
ORDER BY moment, id, seq DESC LIMIT :limit;

-- name: recount_messages
-- How many messages there are, and how many of them are not in exactly one place.
SELECT count(*), coalesce(sum(
  (SELECT count(*) FROM bide_lease l WHERE l.seq = m.seq)
  + (SELECT count(*) FROM bide_aside a WHERE a.seq = m.seq)
  + (SELECT count(*) FROM bide_pending p WHERE p.queue = m.queue AND p.state = DELAYED_STATE
     AND p.rank = m.due * PRIORITIES + MAX_PRIORITY - m.priority AND p.seq = m.seq)
  + (SELECT count(*) FROM bide_pending p WHERE p.queue = m.queue AND p.state = READY_STATE
     AND p.rank = (MAX_PRIORITY - m.priority) * STRIPE + m.due AND p.seq = m.seq)
  <> 1), 0)
FROM bide_message m WHERE m.queue = ?;
