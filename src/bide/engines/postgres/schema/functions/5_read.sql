-- What reads and changes nothing.

-- Messages by id. With `p_lock` they are locked until the transaction ends, and leases that are over
-- have been taken back before: a successor has another version.
CREATE FUNCTION bide._find(p_queue text, p_ids text[], p_max_bytes bigint, p_lock boolean,
                           p_now bigint DEFAULT NULL)
RETURNS SETOF bide._message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
BEGIN
  IF p_lock THEN
    PERFORM _locked(q.id, id, _moment(p_now), 0) FROM unnest(p_ids) AS id ORDER BY id COLLATE "C";
  END IF;
  IF cardinality(p_ids) = 1 THEN
    RETURN QUERY SELECT * FROM _message AS v WHERE v.queue = q.id AND v.id = p_ids[1];
    RETURN;
  END IF;
  RETURN QUERY
    SELECT (s.message).* FROM (
      SELECT selected.message, w.n,
             (selected.message).size AS size,
             sum((selected.message).size) OVER (ORDER BY w.n) AS total,
             row_number() OVER (ORDER BY w.n) AS nth
      FROM unnest(p_ids) WITH ORDINALITY AS w(id, n),
      LATERAL (  -- `OFFSET 0`: one look-up each
        SELECT v AS message FROM _message AS v WHERE queue = q.id AND id = w.id OFFSET 0
      ) AS selected
    ) AS s WHERE s.total - s.size <= p_max_bytes OR s.nth <= 2 ORDER BY s.n;
END $$;

-- A page of messages, with one more than fits in `p_max_bytes` if there are more. By state, in rank
-- order, of ranks from behind (`p_rank`, `p_seq`) to `p_last`, and on through the states to `p_last_state` if
-- it is given; those that have returned since `p_since`, by id from behind `p_id`; by group, in the order of
-- putting; else by id, from `p_id`, and to before `p_last_id` if it is given.
CREATE FUNCTION bide._scan(
  p_queue text, p_state bigint, p_id text, p_rank bigint, p_seq bigint, p_last bigint,
  p_group text, p_after bigint, p_before bigint, p_limit bigint, p_max_bytes bigint,
  p_last_id text, p_last_state bigint DEFAULT NULL, p_since bigint DEFAULT NULL
) RETURNS SETOF bide._message
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
  row _message;
  total bigint := 0;
  count integer := 0;
BEGIN
  FOR row IN
    (SELECT * FROM _message v
     WHERE v.queue = q.id AND v.state >= 0 AND (v.state, v.rank, v.seq) > (p_state, p_rank, p_seq)
       AND (v.state, v.rank) <= (coalesce(p_last_state, p_state), p_last)
       AND v.due >= p_after AND v.due < p_before AND (p_group IS NULL OR v."group" = p_group)
     ORDER BY v.state, v.rank, v.seq LIMIT p_limit)
    UNION ALL
    (SELECT v.* FROM (
       SELECT DISTINCT id FROM returned
       WHERE queue = q.id AND number > p_since % HISTORY_RETURNS AND id > p_id ORDER BY id
     ) AS r, LATERAL (  -- `OFFSET 0`: one look-up each
       SELECT * FROM _message WHERE queue = q.id AND id = r.id OFFSET 0
     ) AS v WHERE v.due >= p_after AND v.due < p_before ORDER BY r.id LIMIT p_limit)
    UNION ALL
    (SELECT * FROM _message v
     WHERE p_state IS NULL AND p_group IS NOT NULL AND v.queue = q.id AND v."group" = p_group
       AND v.seq > p_seq AND v.due >= p_after AND v.due < p_before
     ORDER BY v.seq LIMIT p_limit)
    UNION ALL
    (SELECT * FROM _message v
     WHERE p_state IS NULL AND p_group IS NULL AND p_last_id IS NULL AND p_since IS NULL AND v.queue = q.id
       AND v.id >= p_id AND v.due >= p_after AND v.due < p_before
     ORDER BY v.id LIMIT p_limit)
    UNION ALL
    (SELECT * FROM _message v
     WHERE p_state IS NULL AND p_group IS NULL AND v.queue = q.id
       AND v.id >= p_id AND v.id < p_last_id
     ORDER BY v.id LIMIT p_limit)
  LOOP
    RETURN NEXT row;
    total := total + row.size;
    count := count + 1;
    EXIT WHEN total > p_max_bytes AND count > 1;
  END LOOP;
END $$;

-- Another number where the store may have lost what was committed: a standby was promoted, or the schema
-- was restored. A multiple of 2^44.
CREATE FUNCTION bide._history() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT abs(hashtext('returned'::regclass::oid || CASE WHEN pg_is_in_recovery() THEN '' ELSE
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END) % HISTORIES)::bigint << HISTORY_BITS
$$;

-- The last return that is behind all transactions, with `_history`: what returns from now on has a higher
-- number. Null if that is forgotten.
CREATE FUNCTION bide._last_return() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT _history() + number FROM returned
  WHERE number < _number(pg_snapshot_xmin(pg_current_snapshot())) ORDER BY number DESC LIMIT 1
$$;

-- Whether all returns since `_last_return` are remembered, and nothing was lost.
CREATE FUNCTION bide._remembers(p_since bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT p_since - p_since % HISTORY_RETURNS = _history()
    AND EXISTS (SELECT FROM returned WHERE number = p_since % HISTORY_RETURNS)
$$;

-- How many messages are in each state, and what has become of the others, as JSON of `Counts`. `deltas`:
-- how many changes of the counters were added up for that.
CREATE FUNCTION bide._count(p_queue text, p_now bigint, p_recount boolean, p_stored boolean) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _queue(p_queue);
  limits CONSTANT bigint[] := _limits(q);
  counters json;
  changes bigint;  -- see `deltas` above
  due record;      -- how many messages are due, and since when
  recount record;  -- what the messages themselves say, if that is asked for
BEGIN
  SELECT coalesce(json_object_agg(c.what, c.n), '{}'), coalesce(sum(c.deltas), 0) INTO counters, changes FROM (
    SELECT what, sum(n) AS n, sum(deltas) AS deltas FROM _counter WHERE queue = q.id GROUP BY what
  ) AS c;
  SELECT * INTO due FROM _due_now(q.id, moment);
  SELECT NULL::json AS states, NULL::bigint AS strays INTO recount;
  IF p_recount THEN
    SELECT * INTO recount FROM _recount(q.id);
  END IF;
  RETURN json_strip_nulls(json_build_object(
    'sizes', _sizes(due.n, counters ->> 'pending', counters ->> 'leased', counters ->> 'dead'),
    'flow', counters, 'kept', (counters ->> 'kept')::bigint, 'paused', _is_paused(q, moment),
    'paused_until', CASE WHEN _is_paused(q, moment) THEN _pause_end(q) END, 'keep', q.keep,
    'history', q.history, 'result_ttl', q.result_ttl, 'limit', limits[1], 'rate', limits[2],
    'group_limit', limits[3], 'group_rate', limits[4], 'oldest', due.oldest,
    'overdue', nullif(q.overdue, ''),
    'recount', CASE WHEN p_recount THEN
      _sizes(due.n, recount.states ->> 'pending', recount.states ->> 'leased', recount.states ->> 'dead') END,
    'strays', recount.strays + abs(coalesce((recount.states ->> 'kept')::bigint, 0)
                                   - coalesce((counters ->> 'kept')::bigint, 0)),
    'closed', CASE WHEN q.closes THEN (SELECT count(*) FROM closed WHERE queue = q.id AND until > moment) END,
    'stored', CASE WHEN p_stored THEN _stored(q.id) END, 'deltas', changes));
END $$;

-- Numbers of messages as JSON of `Sizes`: of those that wait `p_due` are due.
CREATE FUNCTION bide._sizes(p_due bigint, p_pending text, p_leased text, p_dead text) RETURNS json
LANGUAGE sql IMMUTABLE AS $$
  SELECT json_build_object('delayed', coalesce(p_pending::bigint, 0) - p_due, 'ready', p_due,
    'leased', coalesce(p_leased::bigint, 0), 'dead', coalesce(p_dead::bigint, 0))
$$;

-- How many messages are due, and since when. Either those are counted or the ones that fall due later in
-- this hour, whichever are fewer: the counters of hours tell the rest. `ORDER BY rank`: by no other index
-- than that by rank.
CREATE FUNCTION bide._due_now(p_queue integer, p_moment bigint, OUT n bigint, OUT oldest bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
  this_hour CONSTANT bigint := p_moment / HOUR_MS;
  reach CONSTANT bigint := p_moment * PRIORITIES + MAX_PRIORITY;
  most bigint := COUNTED_SINGLY;  -- how many are counted one by one; more if neither are so few
  coming bigint;                  -- how many fall due later in this hour
BEGIN
  LOOP
    SELECT count(*) INTO n FROM (
      (SELECT FROM message WHERE queue = p_queue AND state = READY_STATE ORDER BY rank)
      UNION ALL
      (SELECT FROM message WHERE queue = p_queue AND state = DELAYED_STATE AND rank <= reach ORDER BY rank)
      LIMIT most
    ) AS due_now;
    EXIT WHEN n < most;
    SELECT count(*) INTO coming FROM (
      SELECT FROM message WHERE queue = p_queue AND state = DELAYED_STATE
        AND rank > reach AND rank < (this_hour + 1) * HOUR_MS * PRIORITIES
      ORDER BY rank LIMIT most
    ) AS soon;
    IF coming < most THEN
      n := (SELECT coalesce(sum(c.n), 0) FROM _counter AS c
            WHERE queue = p_queue AND what = 'pending' AND hour <= this_hour) - coming;
      EXIT;
    END IF;
    most := most * 4;
  END LOOP;
  oldest := least(_oldest_ready(p_queue), (
    SELECT due FROM message WHERE queue = p_queue AND state = DELAYED_STATE AND rank <= reach ORDER BY rank LIMIT 1));
END $$;

-- The earliest due time of the ready messages: the first of each priority is its oldest.
CREATE FUNCTION bide._oldest_ready(p_queue integer) RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH RECURSIVE first(rank, due) AS (
    (SELECT rank, due FROM message WHERE queue = p_queue AND state = READY_STATE ORDER BY rank LIMIT 1)
    UNION ALL
    SELECT f.rank, f.due FROM first, LATERAL (
      SELECT m.rank, m.due FROM message AS m
      WHERE m.queue = p_queue AND m.state = READY_STATE AND m.rank >= (first.rank / STRIPE + 1) * STRIPE
      ORDER BY m.rank LIMIT 1
    ) AS f
  )
  SELECT min(due) FROM first
$$;

-- How many messages are there in each state, and how many contradict the counters, or themselves.
CREATE FUNCTION bide._recount(p_queue integer, OUT states json, OUT strays bigint)
LANGUAGE sql STABLE
SET enable_seqscan = on SET enable_bitmapscan = on SET enable_sort = on SET enable_hashjoin = on
SET enable_mergejoin = on AS $$
  WITH there AS (
    SELECT ('{pending,pending,leased,dead,kept,kept}'::text[])[state + 1] AS name, count(*) AS n,
           count(*) FILTER (WHERE state < LEASED_STATE AND rank <> _rank(state, due, priority)
                               OR state <> LEASED_STATE AND successor IS NOT NULL) AS wrong
    FROM message WHERE queue = p_queue GROUP BY 1
  ),
  hours AS (
    SELECT sum(abs(coalesce(c.n, 0) - coalesce(p.n, 0))) AS wrong
    FROM (SELECT hour, n FROM _counter WHERE queue = p_queue AND what = 'pending') AS c
    FULL JOIN (SELECT _hour(due) AS hour, count(*) AS n FROM message
               WHERE queue = p_queue AND state < LEASED_STATE GROUP BY 1) AS p
    USING (hour)
  )
  SELECT (SELECT coalesce(json_object_agg(name, n) FILTER (WHERE name IS NOT NULL), '{}') FROM there),
         coalesce((SELECT sum(wrong) FROM there), 0)::bigint
           + coalesce((SELECT wrong FROM hours), 0)::bigint
           + coalesce((SELECT _limit_strays(q) FROM queue AS q
                       WHERE q.id = p_queue AND q.limited IS NOT NULL), 0)
$$;

-- Why a message is where it is, as JSON of `Explained`: the pauses of its queue, its row, its lease, and if it is ready
-- how many are delivered before it, up to `p_most`; in a limited queue how many of its group, and what
-- limit holds it back. A claim makes `p_promote` ready at once.
CREATE FUNCTION bide._explain(p_queue text, p_now bigint, p_id text, p_most bigint,
                              p_promote bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _queue(p_queue);
  m message;
  own_rank bigint;  -- the rank that it has as a ready message
  ahead bigint;     -- how many ready messages are delivered before it
  due record;       -- delayed messages that are due: how many, how many of them before it, whether it is one
  limiting json;    -- the limit that holds it back
BEGIN
  SELECT * INTO m FROM message WHERE queue = q.id AND id = p_id;
  IF m.state = READY_STATE OR m.state = DELAYED_STATE AND m.due <= moment THEN
    own_rank := _rank(READY_STATE, m.due, m.priority);
    IF q.limited IS NULL THEN
      SELECT count(*) INTO ahead FROM (
        SELECT FROM message WHERE queue = q.id AND state = READY_STATE AND (rank, seq) < (own_rank, m.seq)
        ORDER BY rank, seq LIMIT p_most) AS before;
    ELSE
      limiting := _limiting(q, m, floor(_exactly(p_now) * MICROSECONDS)::bigint);
      SELECT count(*) INTO ahead FROM (
        SELECT FROM message WHERE limited = q.limited AND state = READY_STATE
          AND coalesce("group", '') = coalesce(m."group", '') AND (rank, seq) < (own_rank, m.seq)
        ORDER BY rank, seq LIMIT p_most) AS before;
    END IF;
    SELECT count(*) AS n, count(*) FILTER (WHERE (_rank(READY_STATE, d.due, d.priority), d.seq) < (own_rank, m.seq)
             AND (q.limited IS NULL OR d."group" IS NOT DISTINCT FROM m."group")) AS before, bool_or(d.seq = m.seq) AS is_among
    INTO due FROM (
      SELECT message.due, priority, seq, "group" FROM message
      WHERE queue = q.id AND state = DELAYED_STATE AND rank <= moment * PRIORITIES + MAX_PRIORITY
      ORDER BY rank, seq LIMIT p_promote) AS d;
    -- If a claim does not make it ready at once, nobody can say what comes before it.
    ahead := CASE WHEN m.state = DELAYED_STATE AND due.n = p_promote AND NOT due.is_among THEN p_most
                  ELSE least(p_most, ahead + due.before) END;
  END IF;
  -- Failures are text: of a reason with a NUL, functions for JSON make an error.
  RETURN json_strip_nulls(json_build_object(
    'now', moment,
    'pauses', (SELECT json_agg(json_build_object('since', since, 'until', until, 'actor', actor) ORDER BY seq)
               FROM pause WHERE queue = q.id),
    'state', _name((_stands(m, moment)).state), 'due', m.due, 'planned', m.planned,
    'priority', m.priority, 'attempt', m.attempt + (m.state = LEASED_STATE)::integer, 'attempts', m.attempts,
    'failures', m.failures, 'ahead', ahead, 'holder', m.holder, 'since', m.since,
    'extended', m.extended, 'stopping', m.stopping, 'progress', m.progress, 'until', CASE WHEN m.state = LEASED_STATE THEN m.rank END,
    'ended', CASE WHEN m.state > LEASED_STATE THEN m.rank END, 'limited', limiting,
    'successor', (m.successor::json ->> 'due')::bigint, 'rule', m.rule, 'run', m.run));
END $$;

-- The bytes of all messages of a queue, with their successors and their remembered ends. `size` has the
-- characters of the id, so what its bytes are more is added; a body is in a successor as hexadecimal digits.
CREATE FUNCTION bide._stored(p_queue integer) RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = on SET enable_bitmapscan = on AS $$
  SELECT coalesce(sum(size + octet_length(id) - length(id) + coalesce(octet_length("group"), 0)
                      + coalesce(octet_length(failures), 0)
                      + coalesce(octet_length(successor::json ->> 'data') / 2 - 1
                                 + coalesce(octet_length(successor::json ->> 'headers'), 0) + ROW_BYTES, 0)),
                  0)::bigint
       + (SELECT coalesce(sum(ROW_BYTES + coalesce(octet_length(by), 0) + coalesce(octet_length(failures), 0)
                              + coalesce(octet_length(result), 0)), 0)
          FROM ended WHERE queue = p_queue)::bigint
  FROM message WHERE queue = p_queue
$$;

-- How messages with an id have ended, the newest first, as JSON: [state or null, [[how, moment, by, due,
-- attempt, since, failures, result] of each]].
CREATE FUNCTION bide._history(p_queue text, p_now bigint, p_id text, p_limit bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  right_now CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _queue(p_queue);
  m message;
  ends json;
BEGIN
  SELECT * INTO m FROM message WHERE queue = q.id AND id = p_id;
  SELECT json_agg(json_build_array(how, e.moment, by, due, attempt, since, failures::json,
    CASE WHEN e.moment > right_now - q.result_ttl THEN result END) ORDER BY seq DESC) INTO ends
  FROM (SELECT * FROM ended AS o WHERE o.queue = q.id AND o.id = p_id
        AND o.moment + 0 > right_now - _ends_kept(q)
        ORDER BY seq DESC LIMIT p_limit) AS e;
  RETURN json_build_array(CASE WHEN _in_transit(m) THEN DELAYED_STATE ELSE (_stands(m, right_now)).state END,
    coalesce(ends, '[]'::json));
END $$;

-- Ids with their last ends, in the order of these, of moments from `p_first` to before `p_before` and behind
-- (`p_moment`, `p_id`): as JSON [[[id, how, moment, by, due, attempt, since, failures] of each], [moment, id]].
-- The second part is null, or the place behind which to go on: it looks at `p_most` ends, and returns up to
-- `p_limit` and one more than fits in `p_max_bytes`.
CREATE FUNCTION bide._last_ends(p_queue text, p_now bigint, p_how bigint, p_first bigint, p_before bigint,
                                p_moment bigint, p_id text, p_limit bigint, p_most bigint,
                                p_max_bytes bigint) RETURNS json
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
  first CONSTANT bigint := greatest(p_first, _moment(p_now) - _ends_kept(q) + 1);
  e record;
  ends json[] := '{}';
  room bigint := p_max_bytes;
  seen bigint := 0;   -- at how many it has looked
  place json;
BEGIN
  FOR e IN
    SELECT o.id, o.how, o.moment, o.by AS actor, o.due, o.attempt, o.since, o.failures, NOT EXISTS (
      SELECT FROM ended AS n WHERE n.queue = q.id AND n.id = o.id AND n.seq > o.seq) AS is_last
    FROM ended AS o
    WHERE o.queue = q.id AND o.moment >= first AND o.moment < p_before AND (o.moment > p_moment OR o.id > p_id)
    ORDER BY o.moment, o.id, o.seq DESC LIMIT p_most
  LOOP
    seen := seen + 1;
    IF e.is_last AND (p_how IS NULL OR e.how = p_how) THEN
      ends := ends || json_build_array(e.id, e.how, e.moment, e.actor, e.due, e.attempt, e.since, e.failures::json);
      room := room - octet_length(e.id) - coalesce(octet_length(e.actor), 0) - coalesce(octet_length(e.failures), 0);
    END IF;
    IF seen = p_most OR cardinality(ends) = p_limit OR room < 0 AND cardinality(ends) > 1 THEN
      place := json_build_array(e.moment, e.id);
      EXIT;
    END IF;
  END LOOP;
  RETURN json_build_array(to_json(ends), place);
END $$;

-- How many pending messages fall due in each bucket, as JSON of `Forecasted`. Buckets of whole hours come
-- from the counters, but for the hour that has begun; others from the messages themselves.
CREATE FUNCTION bide._forecast(p_queue text, p_now bigint, p_bucket bigint, p_buckets bigint)
RETURNS json LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  first CONSTANT bigint := moment - CASE WHEN p_bucket < HOUR_MS THEN 0 ELSE moment % HOUR_MS END;
  q CONSTANT queue := _queue(p_queue);
  by_hour CONSTANT boolean := p_bucket % HOUR_MS = 0;
  first_hour CONSTANT bigint := first / HOUR_MS;
  -- Before when messages are counted one by one.
  reach CONSTANT bigint := CASE WHEN by_hour THEN (first_hour + 1) * HOUR_MS
                                ELSE first + p_bucket * p_buckets END;
  pending bigint := coalesce((
    SELECT sum(n) FROM _counter WHERE queue = q.id AND what = 'pending'), 0);
  counts bigint[];  -- by bucket
  beyond bigint := 0;  -- what the counters say of the time after the last bucket
  overdue bigint;
BEGIN
  WITH counted AS (
    SELECT (rank / PRIORITIES - first) / p_bucket AS number, count(*) AS n FROM (
      SELECT rank FROM message
      WHERE queue = q.id AND state = DELAYED_STATE AND rank > moment * PRIORITIES + MAX_PRIORITY AND rank < reach * PRIORITIES
      ORDER BY rank
    ) AS m GROUP BY 1
    UNION ALL
    SELECT (hour - first_hour) * HOUR_MS / p_bucket, n FROM _counter
    WHERE by_hour AND queue = q.id AND what = 'pending' AND hour > first_hour
  )
  SELECT coalesce(array_agg(c.n ORDER BY b), '{}'),
         (SELECT coalesce(sum(n), 0) FROM counted WHERE number >= p_buckets)
  INTO counts, beyond FROM generate_series(0, p_buckets - 1) AS b,
  LATERAL (SELECT coalesce(sum(n), 0) AS n FROM counted WHERE number = b) AS c;
  pending := pending - (SELECT coalesce(sum(n), 0) FROM unnest(counts) AS n);
  overdue := CASE WHEN by_hour THEN pending - beyond ELSE (SELECT n FROM _due_now(q.id, moment)) END;
  RETURN json_build_object('start', first, 'overdue', overdue, 'buckets', counts, 'later', pending - overdue);
END $$;

-- How many delayed and ready messages a rule names; and leased ones, with `p_running`.
CREATE FUNCTION bide._count_where(p_queue text, p_group text, p_after bigint, p_before bigint,
                                  p_running boolean)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
BEGIN
  RETURN (SELECT count(*) FROM _unheld(q.id, p_group, p_after, p_before, NULL))
       + (SELECT count(*) FROM _running(q.id, p_group, p_after, p_before, NULL) WHERE p_running);
END $$;

-- The names of the queues that begin so, of those that the caller may use.
CREATE FUNCTION bide._queues(p_prefix text) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT name FROM queue WHERE starts_with(name, p_prefix) AND _may_use(name) ORDER BY name COLLATE "C"
$$;
