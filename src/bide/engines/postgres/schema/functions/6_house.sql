-- Housekeeping, and waking processes that sleep.

-- Add up the changes of the counters, unless another process does; and forget processes that are gone. A
-- commit that is lost with the power loses nothing: the changes are there again, and not added up. Of the
-- returns of messages `p_returned` are kept; those of transactions to come are from another server.
CREATE FUNCTION bide._fold(p_returned bigint DEFAULT MAX_RETURNED) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RETURN;
  END IF;
  PERFORM FROM store FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  WITH changes AS (
    DELETE FROM tally RETURNING *
  ), to_note AS (  -- what the rows of queues do not say yet
    SELECT q.id, bool_or(what = 'ended') AS ends, bool_or(what = 'expired') AS remembers
    FROM changes JOIN queue AS q ON q.id = changes.queue
    WHERE what = 'ended' AND NOT q.ends OR what = 'expired' AND NOT q.remembers
    GROUP BY q.id
  ), noted AS (
    UPDATE queue SET ends = queue.ends OR n.ends, remembers = queue.remembers OR n.remembers
    FROM to_note AS n, LATERAL (  -- `OFFSET 0`: one look-up each
      SELECT id FROM queue WHERE id = n.id FOR NO KEY UPDATE SKIP LOCKED OFFSET 0
    ) AS q WHERE queue.id = q.id
    RETURNING queue.id
  ), left_over AS (  -- others have locked these rows: the next time
    INSERT INTO tally
    SELECT id, what, -1, 0 FROM to_note, LATERAL (VALUES ('ended', ends), ('expired', remembers)) AS w(what, is_new)
    WHERE is_new AND id NOT IN (SELECT id FROM noted)
  )
  INSERT INTO total AS t (queue, what, hour, count)
  SELECT queue, coalesce(part, what), CASE WHEN part = 'put' THEN -1 ELSE hour END, sum(by)
  FROM changes LEFT JOIN _part ON whole = what GROUP BY 1, 2, 3
  ON CONFLICT (queue, what, hour) DO UPDATE SET count = t.count + excluded.count;
  DELETE FROM total WHERE hour >= 0 AND count = 0;
  -- A rank in `lowered` is that of the highest priority, MAX_PRIORITY below the one of the lowest. The first
  -- message that is left takes the place of those below it.
  WITH left_over AS (
    SELECT o.queue, (
      SELECT m.rank FROM message AS m
      WHERE m.queue = o.queue AND m.state = DELAYED_STATE AND m.rank BETWEEN o.first AND o.last + MAX_PRIORITY
      ORDER BY m.rank LIMIT 1) AS first
    FROM (SELECT queue, min(rank) AS first, max(rank) AS last FROM lowered GROUP BY queue) AS o
  ), folded AS (
    DELETE FROM lowered AS l USING left_over AS f
    WHERE f.queue = l.queue AND coalesce(l.rank + MAX_PRIORITY < f.first, true)
    RETURNING f.queue, f.first
  )
  INSERT INTO lowered SELECT DISTINCT queue, first / PRIORITIES * PRIORITIES FROM folded
  WHERE first IS NOT NULL AND NOT EXISTS (
    SELECT FROM lowered AS l
    WHERE l.queue = folded.queue AND l.rank BETWEEN folded.first - MAX_PRIORITY AND folded.first);
  DELETE FROM returned WHERE number > greatest(
    _number(pg_current_xact_id()), _number(pg_snapshot_xmax(pg_current_snapshot())));
  DELETE FROM returned WHERE number < (
    SELECT number FROM returned ORDER BY number DESC OFFSET p_returned LIMIT 1);
  INSERT INTO returned SELECT _number(pg_current_xact_id()), 0, '' WHERE NOT EXISTS (SELECT FROM returned);
  DELETE FROM sleeper WHERE seen < _moment(NULL) - SLEEPER_KEEP;
  UPDATE store SET forgot = _moment(NULL) WHERE forgot < _moment(NULL) - FORGET_EVERY;
  IF FOUND THEN
    PERFORM _forget_answers();
  END IF;
  DELETE FROM reopened AS e WHERE NOT EXISTS (SELECT FROM limited AS l WHERE l.id = e.limited);
END $$;

-- Store until when a process sleeps unless it is woken. Answers when it can claim a message: puts since its
-- last look did not wake it; and what notifications call the queue.
CREATE FUNCTION bide._sleep(p_process text, p_queue text, p_until bigint, p_floor bigint[],
                            OUT sooner bigint, OUT tag text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  q queue;
  l limited;
BEGIN
  PERFORM _check_access(p_queue);
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO sleeper VALUES (p_process, p_queue, p_until, _moment(NULL))
  ON CONFLICT (queue, process) DO UPDATE SET until = excluded.until, seen = excluded.seen;
  SELECT * INTO q FROM queue WHERE name = p_queue;
  SELECT * INTO l FROM limited WHERE id = q.limited;
  sooner := (_next(q, l, _holds(q, p_floor), floor(_exactly(NULL) * MICROSECONDS)::bigint) + UP_TO_MS) / MICROSECONDS;
  tag := _tag(p_queue);
END $$;

-- Until when a process sleeps as far as others know; null if it has not stored that in the last 30 s.
CREATE FUNCTION bide._asleep(p_process text, p_queue text, p_now bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN CASE WHEN p_process IS NOT NULL THEN (
    SELECT until FROM sleeper
    WHERE queue = p_queue AND process = p_process AND seen > p_now - ASLEEP_FOR) END;
END $$;

-- Store that a process waits for the end of a message: for a minute, unless it is stored again. Answers what
-- notifications call it.
CREATE FUNCTION bide._watch(p_process text, p_queue text, p_id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  PERFORM _check_access(p_queue);
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO sleeper VALUES (p_process, p_queue || ' ' || p_id, EVERYTHING, _moment(NULL))
  ON CONFLICT (queue, process) DO UPDATE SET seen = excluded.seen;
  RETURN _tag(p_queue || ' ' || p_id);
END $$;

-- The messages of the queue with a number that a process has claimed, and whose workers were asked to stop. It
-- is told of that by a notification without names: others may read it who may not use the queue.
CREATE FUNCTION bide._stopping(p_process text, p_number integer)
RETURNS TABLE (queue text, id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT q.name, m.id FROM queue AS q JOIN message AS m ON m.queue = q.id
    WHERE q.id = p_number AND _may_use(q.name)
      AND m.state = LEASED_STATE AND m.stopping IS NOT NULL AND m.process = p_process
    ORDER BY m.rank;
END $$;

-- Wake the processes that would sleep past the time at which a message can be claimed: all of them if
-- there are no more than `p_most`, else those that were seen last. One that is gone is woken once.
CREATE FUNCTION bide._wake(p_process text, p_queue text, p_moment bigint, p_most bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  sleeps_too_long boolean;  -- whether there is such a process
  chosen text[];
BEGIN
  IF session_user <> current_user THEN
    PERFORM _check_access(p_queue);
  END IF;
  SELECT true INTO sleeps_too_long FROM sleeper WHERE queue = p_queue AND until > p_moment AND process <> p_process
  LIMIT 1;
  IF sleeps_too_long THEN
    PERFORM set_config('synchronous_commit', 'off', true);  -- a hint may be lost with the power
    IF p_most < WAKE_ALL THEN
      chosen := ARRAY(
        SELECT process FROM sleeper
        WHERE queue = p_queue AND until > p_moment AND process <> p_process
        ORDER BY seen DESC LIMIT p_most FOR UPDATE SKIP LOCKED);
      UPDATE sleeper SET until = p_moment WHERE queue = p_queue AND process = ANY (chosen);
      PERFORM pg_notify(_channel(), p_moment || '/' || process || ' ' || _tag(p_queue))
      FROM unnest(chosen) AS process;
      RETURN;
    END IF;
    UPDATE sleeper SET until = p_moment
    WHERE queue = p_queue AND until > p_moment AND process <> p_process;
    PERFORM pg_notify(_channel(), p_moment || ' ' || _tag(p_queue));
  END IF;
END $$;

-- The same in the caller's own transaction, which may stay open for long: it changes no row that others
-- would wait for, and the commit stays as durable as the caller wants. If the time is not near, it does
-- nothing: waiting processes look again before that.
CREATE FUNCTION bide._wake_at_commit(p_queue text, p_due bigint, p_now bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_due < _moment(p_now) + LOOK_AGAIN
     AND EXISTS (SELECT FROM sleeper WHERE queue = p_queue AND until > p_due) THEN
    PERFORM pg_notify(_channel(), p_due || ' ' || _tag(p_queue));
  END IF;
END $$;
