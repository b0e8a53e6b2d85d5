-- Rules that several functions share. None of them is for callers.
--
-- Here and elsewhere a function that commands call and that reads or changes tables is in plpgsql: up to
-- version 17 one in SQL plans its statements again in each transaction.
--
-- Names in capitals that are no words of SQL, such as PROMOTE, are those of constants.py.
--
-- States are in this order: delayed, ready, leased, dead, acked, expired. So `state < LEASED_STATE` is what
-- waits (pending), and `state >= ACKED_STATE` what is only remembered. Some queries also say `state >= 0`, which
-- is always true: the planner uses the index by rank for these only. See 8_planning.sql.

-- The time of a command in Unix milliseconds, with fractions: the caller's in tests, else the server's.
CREATE FUNCTION bide._exactly(p_now bigint) RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(p_now, extract(epoch FROM clock_timestamp()) * SECOND_MS)::double precision
$$;

-- The same in whole milliseconds.
CREATE FUNCTION bide._moment(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * SECOND_MS)::bigint)
$$;

-- The order of a message among those of its state: of delayed ones by due time, then priority; of ready ones
-- by priority, then due time. A rank grows from what comes first to what comes last.
CREATE FUNCTION bide._rank(p_state bigint, p_due bigint, p_priority bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE p_state WHEN DELAYED_STATE THEN p_due * PRIORITIES + MAX_PRIORITY - p_priority
                      ELSE (MAX_PRIORITY - p_priority) * STRIPE + p_due END
$$;

-- A due time in whole hours of Unix time: pending messages with the same one share a counter.
CREATE FUNCTION bide._hour(p_due bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT (p_due / HOUR_MS)::integer
$$;

-- How many bytes a message takes that has not failed.
CREATE FUNCTION bide._size(p_id text, p_data bytea, p_headers text)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT char_length(p_id) + octet_length(p_data) + coalesce(octet_length(p_headers), 0)
$$;

-- The failures with one more; of more than KEPT_FAILURES the oldest are dropped. The reason is JSON. `p_since`:
-- when the attempt began, if that is known.
CREATE FUNCTION bide._failed(p_failures text, p_attempt integer, p_moment bigint, p_holder text,
                             p_reason text, p_since bigint)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  failure text := '[' || p_attempt || ',' || p_moment || ',' || to_json(coalesce(p_holder, ''))
                  || ',' || p_reason || coalesce(',' || p_since, '') || ']';
  known integer;
BEGIN
  IF p_failures IS NULL OR p_failures = '[]' THEN
    RETURN '[' || failure || ']';
  END IF;
  BEGIN
    known := json_array_length(p_failures::json);
  EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
    RETURN '[' || failure || ']';  -- something else has written to it
  END;
  IF known >= KEPT_FAILURES THEN
    SELECT '[' || string_agg(value::text, ',' ORDER BY n) || ']' INTO p_failures
    FROM json_array_elements(p_failures::json) WITH ORDINALITY AS f(value, n)
    WHERE n > known - OLDER_FAILURES;
  END IF;
  RETURN left(p_failures, -1) || ',' || failure || ']';
END $$;

-- What the counters change by when a message goes from one state to another: `p_was` is null for a
-- new one, `p_is` for one that is gone. `p_cause` is the counter of what happened, if there is one.
-- The hour of a counter that is not by hour is -1. In a limited queue, the group of a message that was
-- ready or leased is noted, since its line or its room has changed; claims find new messages themselves.
CREATE FUNCTION bide._moved(p_was bide.message, p_is bide.message, p_cause text)
RETURNS bide.tally[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  sets CONSTANT text[] := '{pending,pending,leased,dead,kept,kept}';  -- the counters, by state
  moved tally[] := '{}';
BEGIN
  IF p_was.seq IS NOT NULL THEN
    moved := moved || (p_was.queue, sets[p_was.state + 1],
      CASE WHEN p_was.state < LEASED_STATE THEN _hour(p_was.due) ELSE -1 END, -1)::tally;
  END IF;
  IF p_is.seq IS NOT NULL THEN
    moved := moved || (p_is.queue, sets[p_is.state + 1],
      CASE WHEN p_is.state < LEASED_STATE THEN _hour(p_is.due) ELSE -1 END, 1)::tally;
  END IF;
  IF p_was.state = LEASED_STATE AND p_is.state = DEAD_STATE THEN  -- not by an import or a move
    moved := moved || (p_is.queue, 'died', -1, 1)::tally;
  END IF;
  IF p_was.limited IS NOT NULL AND p_was.state IN (READY_STATE, LEASED_STATE) THEN
    PERFORM _note_group(p_was, p_is);
  END IF;
  IF p_cause IS NOT NULL THEN
    moved := moved || (coalesce(p_was.queue, p_is.queue), p_cause, -1, 1)::tally;
  END IF;
  RETURN moved;
END $$;

-- Change the counters as `_moved` says of several messages, with one row for each counter.
CREATE FUNCTION bide._count_moves(p_moves bide.tally[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO tally
  SELECT queue, what, hour, sum(by) FROM unnest(p_moves) GROUP BY queue, what, hour
  HAVING sum(by) <> 0;
END $$;

-- Changes of the counters, with those of one more message: more than MOVES_AT_ONCE are counted at once, and left out
-- of what is answered. Joined arrays are copied, so a command that names many messages has only few at a time.
CREATE FUNCTION bide._joined(p_moves bide.tally[], p_more bide.tally[])
RETURNS bide.tally[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF cardinality(p_moves) < MOVES_AT_ONCE THEN
    RETURN p_moves || p_more;
  END IF;
  PERFORM _count_moves(p_moves);
  RETURN p_more;
END $$;

-- Whether the connected user may use a queue. A user that may act for the owner may use all.
CREATE FUNCTION bide._may_use(p_queue text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (
    SELECT FROM access JOIN pg_roles AS r ON r.rolname = role  -- one may have been dropped
    WHERE p_queue LIKE ANY (queues) AND pg_has_role(session_user, r.oid, 'MEMBER'))
$$;

-- Refuse a user who may not use a queue.
CREATE FUNCTION bide._check_access(p_queue text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF _may_use(p_queue) IS NOT TRUE THEN
    RAISE EXCEPTION 'user % may not use the queue %', session_user, p_queue
      USING ERRCODE = 'insufficient_privilege', HINT = format('SELECT %I.allow(role, queues) lets them', current_schema());
  END IF;
END $$;

-- A queue to look at; a row of nulls when there is none.
CREATE FUNCTION bide._queue(p_queue text) RETURNS bide.queue LANGUAGE plpgsql STABLE AS $$
DECLARE
  q queue;
BEGIN
  PERFORM _check_access(p_queue);
  SELECT * INTO q FROM queue WHERE name = p_queue;
  RETURN q;
END $$;

-- When the pause of a paused queue ends by itself, in milliseconds; null: it does not.
CREATE FUNCTION bide._pause_end(q bide.queue) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT until FROM pause WHERE queue = q.id ORDER BY seq DESC LIMIT 1
$$;

-- Whether nothing may be claimed from a queue. A pause that has ended by itself stays in its row.
CREATE FUNCTION bide._is_paused(q bide.queue, p_now bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce(q.paused, false) AND coalesce(_pause_end(q) > p_now, true);
END $$;

-- Refuse what is not the name of a queue: the rule of `check_queue` in bide.model.names.
CREATE FUNCTION bide._check_queue(p_queue text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF p_queue COLLATE "C" ~ '^([A-Za-z0-9][A-Za-z0-9_.:-]{0,QUEUE_REST}/)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,QUEUE_REST}$' IS NOT TRUE THEN
    RAISE EXCEPTION 'queue % must have 1 to MAX_QUEUE of A-Z a-z 0-9 _ . : -, a letter or digit first',
      to_json(left(p_queue, SHOWN_NAME))
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- The name under which the notifications of this store are sent.
CREATE FUNCTION bide._channel() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT channel FROM store
$$;

-- What notifications call a queue, or the end of a message: `_sleep` and `_watch` answer it.
CREATE FUNCTION bide._tag(p_name text) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT left(md5(key || p_name), 16) FROM secret
$$;

-- Whether the transaction sees what others commit meanwhile: at REPEATABLE READ and above it does not.
CREATE FUNCTION bide._sees_all() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT current_setting('transaction_isolation') LIKE 'read %'
$$;

-- Whether a command may forget what others may have forgotten since the transaction began: later at
-- REPEATABLE READ and above that would be a conflict, and the user's transaction would fail for it.
CREATE FUNCTION bide._may_forget() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT _sees_all() OR now() = statement_timestamp()
$$;

-- The queue that a command changes, which is not deleted until the commit if `p_make`: each put holds a lock
-- on the table `tally`, as all that insert there do, and `_delete` one that excludes it. Not an advisory
-- lock: every user of the database could take it. What it has remembered for long enough is deleted. A row of nulls
-- if there is none, unless `p_make`: then it is made.
CREATE FUNCTION bide._open(p_queue text, p_now bigint, p_make boolean DEFAULT false)
RETURNS bide.queue LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  q queue;
BEGIN
  IF p_make THEN
    LOCK TABLE tally IN ROW EXCLUSIVE MODE;
  END IF;
  IF session_user <> current_user THEN
    PERFORM _check_access(p_queue);
  END IF;
  IF p_make AND NOT _sees_all() THEN  -- a queue that was deleted meanwhile is an error, else the put is lost
    PERFORM FROM queue WHERE name = p_queue FOR KEY SHARE;
  END IF;
  LOOP
    SELECT * INTO q FROM queue WHERE name = p_queue;
    EXIT WHEN q.id IS NOT NULL OR NOT p_make;
    PERFORM _check_queue(p_queue);
    INSERT INTO queue (name) VALUES (p_queue) ON CONFLICT DO NOTHING;
  END LOOP;
  IF q.remembers AND _may_forget() THEN
    PERFORM _forget(q, p_now);
  END IF;
  IF q.ends AND _may_forget() THEN
    PERFORM _forget_ends(q, p_now);
  END IF;
  IF q.closes AND _may_forget() THEN
    PERFORM _forget_closed(q, p_now);
  END IF;
  RETURN q;
END $$;

-- Delete ends that were remembered for long enough, at most FORGET.
CREATE FUNCTION bide._forget_ends(q bide.queue, p_now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM ended WHERE seq IN (
    SELECT seq FROM ended WHERE queue = q.id AND moment <= p_now - _ends_kept(q)
    ORDER BY moment LIMIT FORGET FOR UPDATE SKIP LOCKED);
END $$;

-- Delete what was remembered for long enough, at most FORGET messages of each kind.
CREATE FUNCTION bide._forget(q bide.queue, p_now bigint) RETURNS void LANGUAGE sql VOLATILE AS $$
  WITH acked AS (
    SELECT ctid FROM message WHERE queue = q.id AND state = ACKED_STATE AND rank <= p_now - q.keep
    ORDER BY rank, seq LIMIT FORGET FOR UPDATE SKIP LOCKED
  ), expired AS (
    SELECT ctid FROM message
    WHERE queue = q.id AND state = EXPIRED_STATE AND rank <= p_now - greatest(q.keep, EXPIRED_KEEP)
    ORDER BY rank, seq LIMIT FORGET FOR UPDATE SKIP LOCKED
  ), old AS (
    SELECT * FROM acked UNION ALL SELECT * FROM expired
  ), removed AS (
    DELETE FROM message USING old WHERE message.ctid = old.ctid
  )
  INSERT INTO tally SELECT q.id, 'kept', -1, -count(*) FROM old HAVING count(*) > 0
$$;

-- Note that messages have expired, which are to be forgotten later. A transaction that has locked the row of
-- the queue is not waited for: then `_fold` notes it, which finds the counter `expired` changed.
CREATE FUNCTION bide._note_expired(p_queue integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE queue SET remembers = true WHERE id = (
    SELECT id FROM queue WHERE id = p_queue AND NOT remembers FOR NO KEY UPDATE SKIP LOCKED);
END $$;

-- For how many milliseconds ends stay that are stored: at least some were stopped.
CREATE FUNCTION bide._ends_kept(q bide.queue) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN greatest(q.history, q.result_ttl) > 0 THEN greatest(q.history, q.result_ttl)
              ELSE STOPPED_KEEP END
$$;

-- Note that delayed messages were put with a due time in the past, where claims do not look: the first
-- due time and the last one. `_fold` looks between them for messages that are left.
CREATE FUNCTION bide._lower(p_queue integer, p_moment bigint, p_dues bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO lowered SELECT p_queue, d.due * PRIORITIES FROM (
    SELECT min(due) AS first, max(due) AS last FROM unnest(p_dues) AS due WHERE due < p_moment
  ) AS past, LATERAL (SELECT first UNION SELECT last) AS d(due) WHERE d.due IS NOT NULL;
END $$;

-- Remember how a message ended, as it was then. Its holder, if it had one, goes before `p_by`.
CREATE FUNCTION bide._remember_end(q bide.queue, p_message bide.message, p_how integer,
                                   p_moment bigint, p_by text, p_result text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF (q.result_ttl > 0 OR p_message.stopping IS NOT NULL)
     AND EXISTS (SELECT FROM sleeper WHERE queue = q.name || ' ' || p_message.id) THEN
    PERFORM pg_notify(_channel(), '0 ' || _tag(q.name || ' ' || p_message.id));
  END IF;
  IF NOT q.ends THEN  -- it has no history: `_fold` notes the end, because that locks the row of the queue
    INSERT INTO tally VALUES (q.id, 'ended', -1, 0);
  END IF;
  INSERT INTO ended (queue, id, how, moment, by, due, attempt, since, failures, result)
  SELECT q.id, p_message.id, p_how, p_moment, coalesce(p_message.holder, p_by), p_message.due,
         p_message.attempt + (p_message.holder IS NOT NULL)::integer, p_message.since,
         CASE WHEN q.history > 0 THEN p_message.failures END,
         CASE WHEN q.result_ttl > 0 THEN p_result END;
END $$;

-- Whether a move or import has made a dead letter of a message on its way: a change would be lost, and the message
-- has not ended. The last reason of its failures, which are JSON, begins with the mark; a quote within a reason has a
-- backslash before it.
CREATE FUNCTION bide._in_transit(p_message bide.message) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT p_message.state = DEAD_STATE
     AND coalesce(p_message.failures, '') ~ E'[^\\\\]"in transit by bide ([^"\\\\]|\\\\.)*"[^"]*\\]\\]$'
$$;

-- A message, which must be locked, after a failed attempt: dead if `p_dies`, else ready again; with `p_final` it
-- has no attempt left then. One that repeats does not die: who claims it without an attempt left makes a dead
-- letter of its run, and plans the next one.
CREATE FUNCTION bide._fail(p_message bide.message, p_moment bigint, p_now bigint, p_reason text,
                           p_dies boolean, p_final boolean DEFAULT false)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  held_by CONSTANT text := p_message.holder;
BEGIN
  p_message.attempt := p_message.attempt + 1;
  p_message.failures := _failed(p_message.failures, p_message.attempt, p_moment, held_by, p_reason,
                                p_message.since);
  p_message.holder := NULL;
  p_message.since := NULL;
  p_message.state := CASE WHEN p_dies THEN DEAD_STATE ELSE READY_STATE END;
  IF p_final AND NOT p_dies THEN
    p_message.attempt := greatest(p_message.attempt, p_message.attempts);
  END IF;
  IF p_dies THEN
    p_message.rank := p_now;
    PERFORM _remember_end(q, p_message, DEAD_END, p_now, held_by)
    FROM queue AS q WHERE id = p_message.queue AND greatest(history, result_ttl) > 0;
  END IF;
  IF p_message.successor IS NOT NULL THEN
    IF p_dies THEN
      INSERT INTO tally VALUES (p_message.queue, 'died', -1, 1), (p_message.queue, 'revived', -1, 1);
    END IF;
    RETURN _follow(p_message, p_now);
  END IF;
  RETURN p_message;
END $$;

-- Ask the worker of a message, which must be locked, to stop; of several who ask, the first one is
-- remembered. Any end but an ack counts as cancelled from now on. A successor is removed, and the message
-- repeats no longer. The process that has claimed it is told by the commit; it asks `_stopping` which messages
-- are meant. (A notification is a time, 0 for at once, perhaps a process, and what it is about: see
-- `notifier.py`.)
CREATE FUNCTION bide._stop(p_message bide.message, p_by text) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE message SET stopping = coalesce(p_message.stopping, p_by, ''), successor = NULL, run = NULL
  WHERE queue = p_message.queue AND id = p_message.id;
  PERFORM pg_notify(_channel(), '0/' || p_message.process || ' stop ' || p_message.queue)
  WHERE p_message.process IS NOT NULL;
END $$;

-- What is left of a message whose worker was asked to stop, and has not acked it: its successor, or a row of
-- nulls.
CREATE FUNCTION bide._stopped(p_message bide.message, p_now bigint)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  p_message.attempt := p_message.attempt + 1;
  p_message.holder := NULL;
  PERFORM _remember_end(q, p_message, CANCELLED_END, p_now, nullif(p_message.stopping, ''))
  FROM queue AS q WHERE id = p_message.queue;
  INSERT INTO tally VALUES (p_message.queue, 'cancelled', -1, 1);
  IF p_message.successor IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO tally VALUES (p_message.queue, 'put', -1, 1);
  RETURN _follow(p_message, p_now);
END $$;

-- The next run of a message that repeats, as if it had just been put; a retry had shortened how late it may be.
CREATE FUNCTION bide._next_run(p_message bide.message, p_due bigint, p_run text)
RETURNS bide.message LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  p_message.expires := p_message.expires + p_message.due - coalesce(p_message.planned, p_message.due);
  p_message.state := DELAYED_STATE;
  p_message.due := p_due;
  p_message.run := p_run;
  p_message.attempt := 0;
  p_message.planned := NULL;
  p_message.asked := NULL;
  p_message.failures := NULL;
  RETURN p_message;
END $$;

-- The run of a message that was acked by somebody who has not planned the next one.
CREATE FUNCTION bide._ended_run(p_run text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN starts_with(p_run, 'RUN_ENDED') THEN p_run ELSE 'RUN_ENDED' || coalesce(p_run, '') END
$$;

-- Who made the last attempt of a message that failed. Only the name becomes text: a reason may have a NUL.
CREATE FUNCTION bide._failed_by(p_failures text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN (
    SELECT part.value #>> '{}'
    FROM (SELECT value FROM json_array_elements(p_failures::json) WITH ORDINALITY AS f(value, n)
          ORDER BY n DESC LIMIT 1) AS last,
         json_array_elements(last.value) WITH ORDINALITY AS part(value, n)
    WHERE part.n = 3);
EXCEPTION WHEN invalid_text_representation OR invalid_parameter_value THEN
  RETURN NULL;  -- something else has written to it
END $$;

-- A message whose run was not acked, and has ended as `p_how` says: see `renew` of bide.engines.rules.leases.
-- `p_goes_on`: its next run takes its place, `p_due` and `p_run`. `p_is_last`: there is none, as its rule says.
-- Else it was cancelled meanwhile, and its successor takes its place, if it has one. A row of nulls: it is gone.
CREATE FUNCTION bide._renewed(p_message bide.message, p_how text, p_goes_on boolean, p_is_last boolean,
                              p_due bigint, p_run text, p_now bigint)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  is_cancelled CONSTANT boolean := NOT p_goes_on AND (p_how = 'ended' OR NOT p_is_last);
  failed_by CONSTANT text := CASE WHEN p_how = 'dead' AND NOT is_cancelled THEN _failed_by(p_message.failures) END;
BEGIN
  IF p_message.stopping IS NOT NULL THEN
    RETURN _stopped(p_message, p_now);
  END IF;
  p_message.holder := NULL;
  p_message.since := NULL;
  IF is_cancelled OR p_how <> 'ended' THEN
    PERFORM _remember_end(q, p_message, CASE WHEN is_cancelled THEN CANCELLED_END WHEN p_how = 'dead' THEN DEAD_END
                                             ELSE EXPIRED_END END, p_now, failed_by)
    FROM queue AS q WHERE id = p_message.queue AND greatest(history, result_ttl) > 0;
  END IF;
  IF is_cancelled OR p_how = 'expired' THEN
    INSERT INTO tally VALUES (p_message.queue, CASE WHEN is_cancelled THEN 'cancelled' ELSE 'expired' END, -1, 1);
  END IF;
  IF p_goes_on AND p_how = 'expired' OR is_cancelled AND p_message.successor IS NOT NULL THEN
    INSERT INTO tally VALUES (p_message.queue, 'put', -1, 1);
  END IF;
  IF p_goes_on THEN
    RETURN _next_run(p_message, p_due, p_run);
  ELSIF is_cancelled THEN
    RETURN CASE WHEN p_message.successor IS NOT NULL THEN _follow(p_message, p_now) END;
  END IF;
  PERFORM _note_expired(p_message.queue) WHERE p_how = 'expired';
  p_message.state := CASE p_how WHEN 'dead' THEN DEAD_STATE ELSE EXPIRED_STATE END;
  p_message.rank := p_now;
  p_message.run := NULL;
  RETURN p_message;
END $$;

-- The successor of a message whose lease has ended. Nothing is counted.
CREATE FUNCTION bide._follow(p_message bide.message, p_now bigint)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  p_message := json_populate_record(p_message, p_message.successor::json);
  p_message.state := DELAYED_STATE;
  p_message.attempt := 0;
  p_message.planned := NULL;
  p_message.asked := NULL;
  p_message.failures := NULL;
  p_message.successor := NULL;
  -- A claim reads the clock before its transaction has a number, so it may be behind by its duration.
  PERFORM _lower(p_message.queue, p_now + LONGEST_CLAIM, ARRAY[p_message.due]);
  RETURN p_message;
END $$;

-- Numbers of transactions as `returned` has them.
CREATE FUNCTION bide._number(p_transaction xid8) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT p_transaction::text::bigint
$$;

-- Remember a message that has gone from its state and rank to an earlier place.
CREATE FUNCTION bide._remember_return(p_was bide.message, p_state bigint, p_rank bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF (p_state, p_rank) < (p_was.state, p_was.rank) THEN
    INSERT INTO returned VALUES (_number(pg_current_xact_id()), p_was.queue, p_was.id)
    ON CONFLICT DO NOTHING;
  END IF;
END $$;

-- Store a changed message. A body that is the same is not written again. That it has gone to an earlier
-- place is remembered, so that scans which are past that place read it, too.
CREATE FUNCTION bide._store(p_was bide.message, p_is bide.message)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  new_rank bigint;
BEGIN
  UPDATE message SET state = p_is.state, due = p_is.due, expires = p_is.expires,
    rank = CASE WHEN p_is.state < LEASED_STATE THEN _rank(p_is.state, p_is.due, p_is.priority) ELSE p_is.rank END,
    planned = p_is.planned, asked = p_is.asked, created = p_is.created, priority = p_is.priority,
    attempt = p_is.attempt, attempts = p_is.attempts, "group" = p_is."group",
    token = CASE WHEN p_is.state = LEASED_STATE THEN p_is.token END,
    holder = CASE WHEN p_is.state = LEASED_STATE THEN p_is.holder END,
    since = CASE WHEN p_is.state = LEASED_STATE THEN p_is.since END,
    extended = CASE WHEN p_is.state = LEASED_STATE THEN p_is.extended END,
    stopping = CASE WHEN p_is.state = LEASED_STATE THEN p_is.stopping END,
    progress = CASE WHEN p_is.state = LEASED_STATE THEN p_is.progress END,
    process = CASE WHEN p_is.state = LEASED_STATE THEN p_is.process END,
    is_json = p_is.is_json, headers = p_is.headers, failures = p_is.failures,
    successor = p_is.successor, rule = p_is.rule, run = p_is.run, size = _size(id, p_is.data, p_is.headers),
    data = CASE WHEN data = p_is.data THEN data ELSE p_is.data END
  WHERE queue = p_is.queue AND id = p_is.id RETURNING rank INTO new_rank;
  PERFORM _remember_return(p_was, p_is.state, new_rank);
END $$;

-- Take a message back whose lease is over. Of one that is gone, the row that is returned has its `seq` only, and if
-- its worker was asked to stop, also `due` and `stopping`.
CREATE FUNCTION bide._lapse(p_was bide.message, p_now bigint)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  -- A successor in a closed group is removed: see bide.engines.rules.closing.
  shut bigint := _closed_until(p_was.queue, p_was.successor::json ->> 'group', p_now);
  dies CONSTANT boolean := p_was.stopping IS NULL AND p_was.run IS NULL AND p_was.attempt + 1 >= p_was.attempts;
  new message;
BEGIN
  IF shut IS NOT NULL THEN
    p_was.successor := NULL;
  END IF;
  IF p_was.stopping IS NULL THEN
    new := _fail(p_was, p_was.rank, p_now,
                 '"the lease lapsed: the holder died, hung, or needed longer than its lease"',
                 dies);
  ELSE
    new := _stopped(p_was, p_now);
  END IF;
  IF new.state < LEASED_STATE AND coalesce(shut, _closed_until(new.queue, new."group", p_now)) IS NOT NULL THEN
    PERFORM _remember_end(q, new, CANCELLED_END, p_now, NULL)
    FROM queue AS q WHERE id = new.queue AND greatest(history, result_ttl) > 0;
    INSERT INTO tally VALUES (p_was.queue, 'cancelled', -1, 1);
    new := NULL;
  END IF;
  IF new.seq IS NULL THEN
    DELETE FROM message WHERE queue = p_was.queue AND id = p_was.id;
  ELSE
    PERFORM _store(p_was, new);
  END IF;
  PERFORM _count_moves(_moved(p_was, new, CASE WHEN NOT dies THEN 'lapsed' END));
  new.seq := p_was.seq;
  IF new.state IS NULL AND p_was.stopping IS NOT NULL THEN
    new.due := p_was.due;
    new.stopping := p_was.stopping;
  END IF;
  RETURN new;
END $$;

-- Lock a message, take it back if its lease is over, and return it; a row without a state if there is none. A
-- replacement is another row: after waiting for the row before it, a query finds nothing and looks again.
-- With `p_patience`, a leased message is waited for so many milliseconds at most: see `_awaited`.
CREATE FUNCTION bide._locked(p_queue integer, p_id text, p_now bigint, p_patience integer DEFAULT NULL)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  locked message;
BEGIN
  LOOP
    IF p_patience IS NULL THEN
      SELECT * INTO locked FROM message WHERE queue = p_queue AND id = p_id FOR UPDATE;
    ELSE
      SELECT * INTO locked FROM message WHERE queue = p_queue AND id = p_id FOR UPDATE SKIP LOCKED;
      IF locked.seq IS NULL THEN
        locked := _awaited(p_queue, p_id, p_patience);
      END IF;
    END IF;
    -- Another transaction may have put the id in this moment: then lock that message.
    EXIT WHEN locked.seq IS NOT NULL OR NOT EXISTS (
      SELECT FROM message WHERE queue = p_queue AND id = p_id);
  END LOOP;
  IF locked.state = LEASED_STATE AND locked.rank <= p_now THEN
    RETURN _lapse(locked, p_now);
  END IF;
  RETURN locked;
END $$;

-- Lock a message that another transaction has locked, once that has ended. A leased one is waited for
-- `p_patience` milliseconds at most. After that its holder settles it in a transaction of its own, which
-- may be open for long: it is returned without a lock, in the state SETTLING_STATE.
CREATE FUNCTION bide._awaited(p_queue integer, p_id text, p_patience integer)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  usual CONSTANT text := current_setting('lock_timeout');
  awaited message;
BEGIN
  SELECT * INTO awaited FROM message WHERE queue = p_queue AND id = p_id;
  -- Only a leased message can be locked for long; others are waited for as by any command.
  IF awaited.state IS DISTINCT FROM LEASED_STATE THEN
    SELECT * INTO awaited FROM message WHERE queue = p_queue AND id = p_id FOR UPDATE;
    RETURN awaited;
  END IF;
  IF p_patience > 0 THEN
    BEGIN
      PERFORM set_config('lock_timeout', p_patience::text, true);
      SELECT * INTO awaited FROM message WHERE queue = p_queue AND id = p_id FOR UPDATE;
      PERFORM set_config('lock_timeout', usual, true);
      RETURN awaited;
    EXCEPTION WHEN lock_not_available THEN
      NULL;
    END;
  END IF;
  awaited.state := SETTLING_STATE;
  awaited.successor := NULL;  -- nobody else may change it now
  RETURN awaited;
END $$;

-- The state of a message as replies have it: a delayed message that is due is ready.
CREATE FUNCTION bide._stands(p_message bide.message, p_now bigint,
                             OUT state smallint, OUT due bigint, OUT until bigint, OUT holder text)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  state := CASE WHEN p_message.state = DELAYED_STATE AND p_message.due <= p_now THEN READY_STATE ELSE p_message.state END;
  due := CASE WHEN p_message.state IS NOT NULL THEN p_message.due END;  -- it may be gone just now
  until := CASE WHEN p_message.state >= LEASED_STATE THEN p_message.rank END;
  holder := CASE WHEN p_message.state IN (LEASED_STATE, SETTLING_STATE) THEN p_message.holder END;
END $$;
