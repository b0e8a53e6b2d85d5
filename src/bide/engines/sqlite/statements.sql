-- Statements of the SQLite engine, by name: finding messages by id, and changing them. Scans and counts are
-- in reading.sql, limited queues in limits.sql. See schema.sql for the tables.
--
-- Parameters are `:name` where one is needed twice or there are many, else `?` in the order of the
-- text, also where most commands run the statement, since the driver takes longer over names. In `json_each`
-- there is a JSON array: of ids, or of sequence numbers. Names in braces are the columns of a row in
-- tables.py. Names in capitals that are no words of SQL are those of constants.py.
--
-- What selects whole records has the columns of `record_of` in tables.py: {message}, the state, the rank,
-- {lease}, the time of its end, and its successor. Where the rank is not known it is 0; and where the state
-- is that of a ready message or of a delayed one, the reader tells which by the clock.

-- name: load_queue
-- With whether there are messages that no counter includes: see `uncounted`. What has happened is only
-- added to: see `load_flow`.
SELECT {queue}, (SELECT max(seq) FROM bide_message) > (SELECT counted FROM bide_store)
FROM bide_queue WHERE name = ?;

-- name: load_flow
SELECT {flow} FROM bide_queue WHERE id = ?;

-- name: create_queue
INSERT INTO bide_queue (name, token) VALUES (?, ?);

-- name: drop_queue
DELETE FROM bide_queue WHERE id = ?;

-- name: pauses
SELECT since, until, actor FROM bide_pause WHERE queue = ? ORDER BY rowid;

-- name: begin_pause
INSERT INTO bide_pause (queue, since, until, actor) VALUES (?, ?, ?, ?);

-- name: forget_pauses
DELETE FROM bide_pause WHERE queue = :queue AND rowid NOT IN
  (SELECT rowid FROM bide_pause WHERE queue = :queue ORDER BY rowid DESC LIMIT :count);

-- name: end_pause
UPDATE bide_pause SET until = ?
WHERE rowid = (SELECT rowid FROM bide_pause WHERE queue = ? ORDER BY rowid DESC LIMIT 1);

-- name: save_queue
UPDATE bide_queue SET {set_queue} WHERE id = ?;

-- name: uncounted
-- What single puts have added since the counters of the queues were written.
SELECT queue, due / HOUR_MS, count(*) FROM bide_message NOT INDEXED
WHERE seq > (SELECT counted FROM bide_store) GROUP BY 1, 2;

-- name: hours
-- The counters of pending messages by hours in which they fall due.
SELECT hour, count FROM bide_hour WHERE queue = ?;

-- name: count_hour
INSERT INTO bide_hour (queue, hour, count) VALUES (?, ?, ?)
ON CONFLICT (queue, hour) DO UPDATE SET count = count + excluded.count;

-- name: drop_hour
DELETE FROM bide_hour WHERE queue = ? AND hour = ? AND count = 0;

-- name: recount_hours
-- Counted by the caller: to group millions of rows SQLite would sort them, in memory.
SELECT CASE state WHEN DELAYED_STATE THEN rank / PRIORITIES ELSE rank % STRIPE END / HOUR_MS
FROM bide_pending WHERE queue = ?;

-- name: count_delayed
-- The delayed messages with ranks behind one and up to another, as far as a limit.
SELECT count(*) FROM (
  SELECT 1 FROM bide_pending WHERE queue = ? AND state = DELAYED_STATE AND rank > ? AND rank <= ? LIMIT ?
);

-- name: count_puts
UPDATE bide_queue SET put = put + ?, delayed = delayed + ? WHERE id = ?;

-- name: balance
-- Every message is counted: those to come have larger numbers.
UPDATE bide_store SET counted = (SELECT max(seq) FROM bide_message)
WHERE counted < (SELECT max(seq) FROM bide_message);

-- name: queue_names
SELECT name FROM bide_queue WHERE substr(name, 1, length(:prefix)) = :prefix ORDER BY name;

-- name: last_seq
-- Numbers of new messages are above what is counted, even if the last message has left.
SELECT max(counted, (SELECT coalesce(max(seq), 0) FROM bide_message)) FROM bide_store;

-- Putting.

-- name: insert_message
-- What a message does not have is no NULL here: Python's driver takes long over each.
INSERT INTO bide_message
  (seq, queue, id, due, priority, attempt, attempts, expires, "group", headers, failures, data,
   created, rule, run)
VALUES (?, ?, ?, ?, ?, ?, ?, nullif(?, -1), nullif(?, ''), nullif(?, ''), nullif(?, ''), ?, ?,
        nullif(?, ''), nullif(?, ''))
ON CONFLICT (queue, id) DO NOTHING;

-- name: put_one_view
-- A name to insert into; see `put_one_trigger`.
CREATE TEMP VIEW put_one
  (queue, id, due, priority, attempts, expires, "group", data, created, rule, run) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;

-- name: put_one_trigger
-- Puts one message. It fails for a queue that is new or has to forget messages first, for the first
-- message with a priority, for one with a group if some groups are closed, and after UNCOUNTED messages that
-- no counter includes.
CREATE TEMP TRIGGER put_one_message INSTEAD OF INSERT ON put_one BEGIN
  INSERT INTO bide_message
    (seq, queue, id, due, priority, attempt, attempts, expires, "group", data, created, rule, run)
  VALUES ((SELECT 1 + max(counted, (SELECT coalesce(max(seq), 0) FROM bide_message))
           FROM bide_store),
          (SELECT id FROM bide_queue
           WHERE name = NEW.queue AND kept = 0 AND weighted >= (NEW.priority > 0)
             AND (closed = 0 OR NEW."group" = '')),
          NEW.id, NEW.due, NEW.priority, 0, NEW.attempts, nullif(NEW.expires, -1),
          nullif(NEW."group", ''), NEW.data, NEW.created, nullif(NEW.rule, ''), nullif(NEW.run, ''));
  SELECT RAISE(ABORT, 'not simple') FROM bide_store WHERE last_insert_rowid() > counted + UNCOUNTED;
  INSERT INTO bide_pending (queue, state, rank, seq)
  VALUES ((SELECT id FROM bide_queue WHERE name = NEW.queue), DELAYED_STATE,
          NEW.due * PRIORITIES + MAX_PRIORITY - NEW.priority, last_insert_rowid());
END;

-- name: put_one
-- As in `insert_message`, an `expires` of -1 and an empty `group`, `rule` or `run` are none.
INSERT INTO put_one VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: seqs_after
-- Which of the messages just inserted are there: the others met their id.
SELECT seq FROM bide_message WHERE seq > ?;

-- name: delay_after
-- The messages just inserted, but for dead letters.
INSERT INTO bide_pending (queue, state, rank, seq)
SELECT queue, DELAYED_STATE, due * PRIORITIES + MAX_PRIORITY - priority, seq FROM bide_message
WHERE seq > ? AND seq NOT IN (SELECT seq FROM bide_aside WHERE seq > ?);

-- name: insert_pending
INSERT INTO bide_pending (queue, state, rank, seq) VALUES (?, ?, ?, ?);

-- name: insert_aside
INSERT INTO bide_aside (seq, queue, state, ended) VALUES (?, ?, ?, ?);

-- Finding by id.

-- name: records
-- In the order of the ids. Parameters: whether bodies are wanted, whether messages of the queue are
-- ready, the ids, the queue.
SELECT {perhaps_body},
       coalesce(a.state, CASE WHEN l.seq IS NOT NULL THEN LEASED_STATE WHEN NOT ? THEN DELAYED_STATE ELSE EXISTS (
         SELECT 1 FROM bide_pending p WHERE p.queue = m.queue AND p.state = READY_STATE
         AND p.rank = (MAX_PRIORITY - m.priority) * STRIPE + m.due AND p.seq = m.seq) END),
       0, {lease}, a.ended, s.item
FROM json_each(?) j CROSS JOIN bide_message m ON m.queue = ? AND m.id = j.value
  LEFT JOIN bide_lease l ON l.seq = m.seq LEFT JOIN bide_aside a ON a.seq = m.seq
  LEFT JOIN bide_successor s ON s.queue = m.queue AND s.id = m.id;

-- name: held
-- The leases that are good of some messages, in the order of the ids, but those that repeat, or whose holders
-- were asked to stop.
SELECT l.seq, l.token
FROM json_each(?) j
CROSS JOIN bide_message m ON m.queue = ? AND m.id = j.value AND m.run IS NULL
CROSS JOIN bide_lease l ON l.seq = m.seq AND l.until > ? AND l.stopping IS NULL;

-- name: ready_before
-- The ready messages that are served before a rank and a sequence number, as far as a limit.
SELECT seq FROM bide_pending
WHERE queue = ? AND state = READY_STATE AND (rank, seq) < (?, ?) LIMIT ?;

-- name: first_due
-- The first delayed messages that are due, with their groups: a limited queue puts them into lines.
SELECT p.rank, p.seq, m."group" FROM bide_pending p CROSS JOIN bide_message m ON m.seq = p.seq
WHERE p.queue = ? AND p.state = DELAYED_STATE AND p.rank <= ? ORDER BY p.rank, p.seq LIMIT ?;

-- Claiming.

-- name: lapsed
-- The messages whose leases are over.
SELECT m.id FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = ? AND l.until <= ? ORDER BY l.until, l.seq LIMIT ?;

-- name: lapsed_whole
-- The same with all that a record has.
SELECT {message}, LEASED_STATE, l.until, {lease}, NULL, NULL
FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = ? AND l.until <= ? ORDER BY l.until, l.seq LIMIT ?;

-- name: rewrite
-- A message whose row cannot be read: its old content becomes its body.
UPDATE bide_message SET id = ?, due = ?, priority = ?, data = ?, failures = ?, attempt = 0,
  attempts = DEFAULT_ATTEMPTS, expires = NULL, "group" = NULL, headers = NULL, planned = NULL, created = 0,
  asked = NULL, rule = NULL, run = NULL
WHERE seq = ?;

-- name: pick
-- The next pending messages of a state, whole.
SELECT {message}, p.state, p.rank
FROM bide_pending p CROSS JOIN bide_message m ON m.seq = p.seq
WHERE p.queue = ? AND p.state = ? AND p.rank <= ?
ORDER BY p.rank, p.seq LIMIT ?;

-- name: nth_due
-- The place of a delayed message that is due, by how many there are before it: up to which some are promoted.
SELECT rank, seq FROM bide_pending WHERE queue = ? AND state = DELAYED_STATE AND rank <= ?
ORDER BY rank, seq LIMIT 1 OFFSET ?;

-- name: promote
-- Delayed to ready: the rank of the one is made of the rank of the other.
INSERT INTO bide_pending (queue, state, rank, seq)
SELECT queue, READY_STATE, rank % PRIORITIES * STRIPE + rank / PRIORITIES, seq FROM bide_pending
WHERE queue = :queue AND state = DELAYED_STATE AND (rank, seq) <= (:rank, :seq);

-- name: drop_first
-- A row value, so that of many with the same rank no more are visited than are to go.
DELETE FROM bide_pending
WHERE queue = :queue AND state = :state AND (rank, seq) <= (:rank, :seq);

-- name: lease
INSERT INTO bide_lease (seq, queue, token, since, until, holder)
SELECT value, :queue, :token, :since, :until, :holder FROM json_each(:seqs);

-- name: next_due
SELECT rank / PRIORITIES FROM bide_pending WHERE queue = ? AND state = DELAYED_STATE ORDER BY rank LIMIT 1;

-- name: next_lapse
SELECT min(until) FROM bide_lease WHERE queue = ?;

-- Settling and moving.

-- name: extend
UPDATE bide_lease SET until = ?, extended = extended + 1 WHERE seq = ?;

-- name: report
UPDATE bide_lease SET stopping = ?, progress = ? WHERE seq = ?;

-- name: drop_lease
DELETE FROM bide_lease WHERE seq = ?;

-- name: drop_leases
DELETE FROM bide_lease WHERE seq IN (SELECT value FROM json_each(?));

-- name: drop_pending
DELETE FROM bide_pending WHERE queue = ? AND state = ? AND rank = ? AND seq = ?;

-- name: drop_aside
DELETE FROM bide_aside WHERE seq = ?;

-- name: drop_message
DELETE FROM bide_message WHERE seq = ?;

-- name: drop_messages
DELETE FROM bide_message WHERE seq IN (SELECT value FROM json_each(?));

-- name: store_successor
INSERT OR REPLACE INTO bide_successor (queue, id, item) VALUES (?, ?, ?);

-- name: all_successors
SELECT item FROM bide_successor WHERE queue = ?;

-- name: drop_successor
DELETE FROM bide_successor WHERE queue = ? AND id = ?;

-- name: recount_successors
-- How many there are, and how many of them follow no leased message.
SELECT count(*), coalesce(sum(NOT EXISTS (
  SELECT 1 FROM bide_message m JOIN bide_lease l ON l.seq = m.seq
  WHERE m.queue = s.queue AND m.id = s.id)), 0)
FROM bide_successor s WHERE s.queue = ?;

-- name: forgettable
-- Messages that ended so long ago that they are not remembered any more.
SELECT seq FROM bide_aside WHERE queue = ? AND state = ? AND ended <= ?
ORDER BY ended, seq LIMIT ?;

-- name: remember_acked
-- `rows` are pairs of a sequence number and a result, of messages that are still leased.
INSERT INTO bide_ended (queue, id, how, moment, "by", due, attempt, since, failures, result)
SELECT m.queue, m.id, ACKED_END, :now, l.holder, m.due, m.attempt + 1, l.since,
       CASE WHEN :history THEN m.failures END, json_extract(j.value, '$[1]')
FROM json_each(:rows) j CROSS JOIN bide_message m ON m.seq = json_extract(j.value, '$[0]')
  CROSS JOIN bide_lease l ON l.seq = m.seq;

-- name: remember_end
INSERT INTO bide_ended (queue, id, how, moment, "by", due, attempt, since, failures, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: ids
SELECT m.id FROM json_each(?) j CROSS JOIN bide_message m ON m.seq = j.value;

-- name: forget_ends
DELETE FROM bide_ended WHERE seq IN (
  SELECT seq FROM bide_ended WHERE queue = ? AND moment <= ? ORDER BY moment LIMIT ?);

-- name: of_group
-- The unheld messages of a group.
SELECT m.seq FROM bide_message m
WHERE m.queue = :queue AND m."group" = :group AND m.due >= :after AND m.due < :before
  AND NOT EXISTS (SELECT 1 FROM bide_lease l WHERE l.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM bide_aside a WHERE a.seq = m.seq)
ORDER BY m.seq LIMIT :limit;

-- name: held_by_rule
-- The leased messages that match a rule, but those whose holders were asked to stop.
SELECT l.seq FROM bide_lease l CROSS JOIN bide_message m ON m.seq = l.seq
WHERE l.queue = :queue AND l.stopping IS NULL
  AND m.due >= :after AND m.due < :before AND (:group IS NULL OR m."group" = :group)
ORDER BY l.until, l.seq LIMIT :limit;

-- name: delayed_between
SELECT seq FROM bide_pending
WHERE queue = :queue AND state = DELAYED_STATE AND rank >= :after * PRIORITIES AND rank < :before * PRIORITIES
ORDER BY rank, seq LIMIT :limit;

-- name: ready_between
SELECT seq FROM bide_pending
WHERE queue = :queue AND state = READY_STATE
  AND rank % STRIPE >= :after AND rank % STRIPE < :before
ORDER BY rank, seq LIMIT :limit;

-- name: aside_before
SELECT seq FROM bide_aside WHERE queue = ? AND state = ? AND ended < ?
ORDER BY ended, seq LIMIT ?;

-- name: close_group
INSERT INTO bide_closed (queue, "group", until) VALUES (?, ?, ?)
ON CONFLICT (queue, "group") DO UPDATE SET until = excluded.until;

-- name: closed_until
SELECT until FROM bide_closed WHERE queue = ? AND "group" = ?;

-- name: reopen_group
DELETE FROM bide_closed WHERE queue = ? AND "group" = ?;

-- name: closed_groups
SELECT until, "group" FROM bide_closed WHERE queue = ? AND (until, "group") > (?, ?)
ORDER BY until, "group" LIMIT ?;

-- name: count_closed
SELECT count(*) FROM bide_closed WHERE queue = ? AND until > ?;

-- name: forget_closed
DELETE FROM bide_closed WHERE (queue, "group") IN (
  SELECT queue, "group" FROM bide_closed WHERE queue = ? AND until <= ? ORDER BY until LIMIT ?);

-- name: forwarded
-- Those of the rows of an outbox that were executed.
SELECT row FROM bide_forwarded
WHERE queue = ? AND outbox = ? AND row IN (SELECT value FROM json_each(?));

-- name: forget_forwarded
DELETE FROM bide_forwarded WHERE queue = ? AND outbox = ? AND row < ?;

-- name: remember_forwarded
INSERT OR IGNORE INTO bide_forwarded (queue, outbox, row) VALUES (?, ?, ?);

-- name: drop_old_forwarded
DELETE FROM bide_forwarded WHERE queue = :queue AND (outbox, row) <= (
  SELECT outbox, row FROM bide_forwarded WHERE queue = :queue
  ORDER BY outbox DESC, row DESC LIMIT 1 OFFSET :most);

-- name: remember_return
INSERT INTO bide_return (seq) VALUES (?);

-- name: drop_old_returns
DELETE FROM bide_return WHERE number <= (SELECT max(number) FROM bide_return) - ?;


-- Commands that may be sent again.

-- name: sender
SELECT seq, number, answers, moment FROM bide_sender WHERE owner = ? AND name = ?;

-- name: update_sender
UPDATE bide_sender SET number = ?, answers = ? WHERE seq = ?;

-- name: renew_sender
-- Note when a sender was heard of last.
UPDATE bide_sender SET moment = ? WHERE seq = ?;

-- name: add_sender
INSERT INTO bide_sender (owner, name, number, moment, answers) VALUES (?, ?, ?, ?, ?);

-- name: forget_idle_senders
DELETE FROM bide_sender WHERE moment < ?;

-- name: forget_oldest_senders
DELETE FROM bide_sender WHERE seq IN (
  SELECT seq FROM bide_sender WHERE owner = ? ORDER BY moment DESC, seq DESC LIMIT -1 OFFSET ?);
