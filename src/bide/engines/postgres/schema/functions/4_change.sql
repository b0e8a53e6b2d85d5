-- What may be done to messages by id, and to many by a rule.

-- Do one thing to each message. Answers a row for each that is there: whether it was done, where the
-- message stands now (`state` null: it is gone), and if it was done how far the log had come. If leases
-- of a limited queue have ended, the last row has the number 0: its `due` is when to claim again.
--
-- | verb | which messages | what |
-- |---|---|---|
-- | cancel, reschedule, bury_unheld | delayed, ready | delete; move to a due time; dead |
-- | revive, purge | dead | ready or delayed again; delete |
-- | release | leased | end the lease, as a failed attempt |
-- | ack, retry, bury, extend | leased, by the token given | as the holder says |
CREATE FUNCTION bide._change(
  p_verb text, p_queue text, p_now bigint, p_ids text[], p_tokens bigint[] DEFAULT NULL,
  p_at bigint DEFAULT NULL, p_delay bigint DEFAULT 0, p_if_due bigint DEFAULT NULL,
  p_reason text DEFAULT '""', p_untouched boolean DEFAULT false, p_only_seqs bigint[] DEFAULT NULL,
  p_actor text DEFAULT NULL, p_results text[] DEFAULT NULL
) RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text,
                 place bigint, successor bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);
  remembers CONSTANT boolean := greatest(q.history, q.result_ttl) > 0;
  moves tally[] := '{}';
  wanted record;
  was message;
  new message;
  cause text;
  ends boolean := false;
BEGIN
  PERFORM _shorten(q, p_delay) WHERE p_verb = 'extend' AND coalesce(p_delay < q.lease, true);
  FOR wanted IN
    SELECT * FROM unnest(p_ids, p_tokens, p_results) WITH ORDINALITY AS w(id, token, result, n)
    ORDER BY id COLLATE "C", n
  LOOP
    was := _locked(q.id, wanted.id);
    CONTINUE WHEN was.seq IS NULL;
    IF was.state = 2 AND was.rank <= moment THEN
      new := _lapse(was, moment);
      moves := moves || _moved(was, new, 'lapsed', moment);
      was := new;
    END IF;
    number := wanted.n;
    done := CASE
      WHEN p_verb IN ('cancel', 'reschedule', 'bury_unheld') THEN
        was.state < 2 AND (p_if_due IS NULL OR was.due = p_if_due)
        AND (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs))
      WHEN p_verb IN ('revive', 'purge') THEN
        was.state = 3 AND (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs))
      WHEN p_verb = 'release' THEN was.state = 2
      ELSE was.state = 2 AND was.token = wanted.token
    END;
    successor := NULL;
    IF p_verb = 'cancel' AND was.successor IS NOT NULL AND p_if_due IS NULL AND p_only_seqs IS NULL THEN
      successor := (was.successor::json ->> 'due')::bigint;
      UPDATE message SET successor = NULL WHERE queue = q.id AND id = was.id;
    END IF;
    IF NOT done THEN
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      place := NULL;
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF was.successor IS NOT NULL AND p_verb <> 'extend' THEN  -- the lease ends, and it follows
      IF p_verb = 'ack' THEN
        PERFORM _remember_end(q, was, 0, moment, NULL, wanted.result) WHERE remembers;
        new := _follow(was, moment);
        moves := moves || _moved(was, NULL, 'acked', moment) || _moved(NULL, new, 'put');
      ELSIF p_verb = 'retry' AND p_untouched THEN
        new := _follow(was, moment);
        moves := moves || _moved(was, new, NULL, moment);
      ELSE
        new := _fail(was, moment, moment, p_reason, p_verb = 'bury');
        moves := moves || _moved(was, new, CASE WHEN p_verb <> 'bury' AND was.attempt + 1 < was.attempts
                                                THEN 'retried' END, moment);
      END IF;
      ends := true;
      SELECT * INTO state, due, until, holder FROM _stands(new, moment);
      place := pg_current_wal_insert_lsn() - '0/0';
      RETURN NEXT;
      CONTINUE;
    END IF;
    new := was;
    IF p_verb IN ('reschedule', 'revive') THEN  -- it expires as its put asked, from then on
      new.planned := NULL;
      new.asked := CASE p_verb WHEN 'revive' THEN coalesce(was.asked, was.planned, was.due) END;
      new.expires := was.expires + was.due - coalesce(was.planned, was.due);
    END IF;
    cause := NULL;
    CASE p_verb
      WHEN 'cancel' THEN
        new := NULL;
        cause := 'cancelled';
      WHEN 'purge' THEN
        new := NULL;
        cause := 'purged';
      WHEN 'reschedule' THEN
        new.state := 0;
        new.due := new_due;
      WHEN 'revive' THEN
        new.state := 0;
        new.due := new_due;
        new.attempt := 0;
        cause := 'revived';
      WHEN 'bury_unheld' THEN
        new.state := 3;
        new.rank := moment;
        new.failures := _failed(was.failures, was.attempt, moment, '', p_reason, NULL);
      WHEN 'extend' THEN
        new.rank := moment + p_delay;
        new.extended := coalesce(was.extended, 0) + 1;
      WHEN 'ack' THEN
        cause := 'acked';
        new.state := 4;
        new.rank := moment;
        new.attempt := was.attempt + 1;
        IF q.keep = 0 THEN
          new := NULL;
        END IF;
      WHEN 'bury' THEN
        new := _fail(was, moment, moment, p_reason, true);
      WHEN 'release' THEN
        new := _fail(was, moment, moment, p_reason);
        cause := CASE WHEN new.state = 1 THEN 'retried' END;
      WHEN 'retry' THEN
        IF NOT p_untouched THEN
          new := _fail(was, moment, moment, p_reason);
          cause := CASE WHEN new.state = 1 THEN 'retried' END;
        END IF;
        IF p_untouched AND p_delay = 0 THEN
          new.state := 1;
          new.rank := _rank(1, was.due, was.priority);
        ELSIF new.state <> 3 THEN
          new.state := 0;
          new.planned := coalesce(was.planned, was.due);
          new.due := new_due;
          new.expires := was.expires - (new_due - was.due);
        END IF;
    END CASE;
    IF remembers THEN
      CASE p_verb
        WHEN 'cancel' THEN PERFORM _remember_end(q, was, 1, moment, p_actor);
        WHEN 'purge' THEN PERFORM _remember_end(q, was, 4, moment, p_actor);
        WHEN 'bury_unheld' THEN PERFORM _remember_end(q, new, 3, moment, p_actor);
        WHEN 'ack' THEN PERFORM _remember_end(q, was, 0, moment, NULL, wanted.result);
        ELSE NULL;
      END CASE;
    END IF;
    IF new.seq IS NULL THEN
      DELETE FROM message WHERE queue = q.id AND id = was.id;
    ELSE
      IF new.state = 0 THEN
        new.rank := _rank(0, new.due, new.priority);
      END IF;
      IF new.state <> 2 THEN
        new.token := NULL;
        new.holder := NULL;
        new.since := NULL;
        new.extended := NULL;
      END IF;
      UPDATE message SET state = new.state, rank = new.rank, due = new.due, expires = new.expires,
        planned = new.planned, asked = new.asked, attempt = new.attempt, token = new.token, holder = new.holder,
        since = new.since, extended = new.extended, failures = new.failures
      WHERE queue = q.id AND id = was.id;
    END IF;
    IF p_verb <> 'extend' THEN
      moves := moves || _moved(was, new, cause, moment);
      ends := ends OR was.state = 2;
    END IF;
    SELECT * INTO state, due, until, holder FROM _stands(new, moment);
    due := coalesce(due, CASE WHEN p_verb <> 'ack' THEN was.due END);
    place := pg_current_wal_insert_lsn() - '0/0';
    RETURN NEXT;
  END LOOP;
  IF ends AND q.limited IS NOT NULL THEN
    number := 0; done := false; state := NULL; until := NULL; holder := NULL; place := NULL;
    due := _opens_again(q, moment);
    RETURN NEXT;
  END IF;
  PERFORM _count_moves(moves);
  PERFORM _lower(q.id, moment, ARRAY[p_at]) WHERE p_at < moment AND q.id IS NOT NULL;
END $$;

-- Ack messages, as `_change` does and with the same answer. The common case, good leases in a queue
-- that remembers nothing, takes one statement for all.
CREATE FUNCTION bide._ack(p_queue text, p_now bigint, p_ids text[], p_tokens bigint[],
                          p_results text[])
RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  gone bigint[];
  limits integer[];
  groups text[];
BEGIN
  IF q.keep = 0 AND greatest(q.history, q.result_ttl) = 0 THEN
    WITH held AS MATERIALIZED (  -- `OFFSET 0`: one look-up each
      SELECT m.ctid, w.n FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS w(id, token, n),
      LATERAL (
        SELECT ctid FROM message
        WHERE queue = q.id AND id = w.id AND token = w.token AND rank > moment  -- leased: the others
          AND successor IS NULL                                                 -- have no token
        OFFSET 0
      ) AS m
      ORDER BY w.id COLLATE "C"
    ), acked AS (
      DELETE FROM message m USING held
      WHERE m.ctid = held.ctid AND m.token = p_tokens[held.n] AND m.rank > moment
        AND m.successor IS NULL
      RETURNING held.n, m.limited, m."group"
    )
    SELECT array_agg(n), array_agg(limited) FILTER (WHERE limited IS NOT NULL),
           array_agg("group") FILTER (WHERE limited IS NOT NULL)
    INTO gone, limits, groups FROM acked;
    IF gone IS NOT NULL THEN
      INSERT INTO tally VALUES (q.id, 'leased', -1, -cardinality(gone)),
                               (q.id, 'acked', -1, cardinality(gone));
    END IF;
    IF limits IS NOT NULL THEN
      INSERT INTO lease_end (limited, name, ended, entered, moment)
      SELECT limited, coalesce(name, ''), count(*), false, moment
      FROM unnest(limits, groups) AS g(limited, name) GROUP BY 1, 2;
    END IF;
  END IF;
  IF cardinality(gone) = cardinality(p_ids) AND q.limited IS NULL THEN
    RETURN;  -- all of them: told by an answer without rows
  END IF;
  RETURN QUERY SELECT n, true, NULL::smallint, NULL::bigint, NULL::bigint, NULL::text
    FROM unnest(gone) AS n;
  RETURN QUERY
    SELECT coalesce(w.numbers[c.number], 0), c.done, c.state, c.due, c.until, c.holder
    FROM (
      SELECT array_agg(id) AS ids, array_agg(token) AS tokens, array_agg(result) AS results,
             array_agg(n) AS numbers
      FROM unnest(p_ids, p_tokens, p_results) WITH ORDINALITY AS u(id, token, result, n)
      WHERE n <> ALL (coalesce(gone, '{}')) HAVING count(*) > 0
    ) AS w, _change('ack', p_queue, p_now, w.ids, w.tokens, p_results => w.results) AS c;
  RETURN QUERY SELECT 0::bigint, false, NULL::smallint,
    CASE WHEN limits IS NOT NULL THEN _opens_again(q, moment) END, NULL::bigint, NULL::text;
END $$;

-- The delayed and ready messages that a rule names, at most `p_limit`; ready ones first.
CREATE FUNCTION bide._unheld(p_queue integer, p_group text, p_after bigint, p_before bigint,
                             p_limit integer)
RETURNS SETOF bide.message LANGUAGE plpgsql STABLE AS $$
DECLARE
  found integer;
BEGIN
  IF p_group IS NOT NULL THEN
    RETURN QUERY SELECT * FROM message
      WHERE queue = p_queue AND "group" = p_group AND state < 2
        AND due >= p_after AND due < p_before
      ORDER BY seq LIMIT p_limit;
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM message p
    WHERE p.queue = p_queue AND p.state = 1 AND p.due >= p_after AND p.due < p_before
    ORDER BY p.rank, p.seq LIMIT p_limit;
  GET DIAGNOSTICS found = ROW_COUNT;
  RETURN QUERY SELECT * FROM message p
    WHERE p.queue = p_queue AND p.state = 0 AND p.rank >= p_after * 256 AND p.rank < p_before * 256
    ORDER BY p.rank, p.seq LIMIT p_limit - found;
END $$;

-- Delete up to 1,000 messages and count why. Answers how many, and whether more are left. Each is looked
-- at again when it is locked: somebody may have claimed, moved or changed it meanwhile.
CREATE FUNCTION bide._delete_where(
  p_cause text, p_queue text, p_now bigint, p_state integer, p_group text, p_after bigint,
  p_before bigint, p_actor text, OUT count integer, OUT more boolean, OUT place bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  first_due bigint := coalesce(p_after, 0);
  last_due bigint := coalesce(p_before, 9007199254740992);
  moves tally[] := '{}';
  ids text[];
  wanted text;
  was message;
BEGIN
  CASE p_state
    WHEN 0 THEN first_due := moment + 1;
    WHEN 1 THEN last_due := least(last_due, moment + 1);
    ELSE NULL;
  END CASE;
  SELECT coalesce(array_agg(id ORDER BY id COLLATE "C") FILTER (WHERE n <= 1000), '{}'), count(*) > 1000
  INTO ids, more FROM (
    SELECT id, row_number() OVER () AS n FROM (
      (SELECT id FROM message
       WHERE p_state >= 3 AND queue = q.id AND state = p_state AND state >= 0
         AND rank < coalesce(p_before, 9007199254740992) ORDER BY rank, seq LIMIT 1001)
      UNION ALL
      SELECT id FROM _unheld(q.id, p_group, first_due, last_due, 1001) WHERE coalesce(p_state, 0) < 2
    ) AS there
  ) AS numbered;
  count := 0;
  FOREACH wanted IN ARRAY ids LOOP
    DELETE FROM message WHERE queue = q.id AND id = wanted AND CASE
      WHEN p_state >= 3 THEN state = p_state AND rank < coalesce(p_before, 9007199254740992)
      ELSE state < 2 AND due >= first_due AND due < last_due AND (p_group IS NULL OR "group" = p_group)
    END RETURNING * INTO was;
    CONTINUE WHEN was.seq IS NULL;
    IF was.state < 4 AND greatest(q.history, q.result_ttl) > 0 THEN
      PERFORM _remember_end(q, was, CASE p_cause WHEN 'purged' THEN 4 ELSE 1 END, moment, p_actor);
    END IF;
    count := count + 1;
    moves := moves || _moved(was, NULL, CASE WHEN was.state < 4 THEN p_cause END);
    place := pg_current_wal_insert_lsn() - '0/0';
  END LOOP;
  PERFORM _count_moves(moves);
END $$;

-- Set what is given for a queue, made if it does not exist.
CREATE FUNCTION bide._configure(p_queue text, p_now bigint, p_paused boolean, p_keep bigint,
                                p_actor text DEFAULT NULL, p_pauses integer DEFAULT 0,
                                p_history bigint DEFAULT NULL, p_result_ttl bigint DEFAULT NULL,
                                p_limits bigint[] DEFAULT NULL)
RETURNS TABLE (paused boolean, keep bigint, wakes boolean, moment bigint, history bigint,
               result_ttl bigint, limits bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  q queue;
  limiting record;
  resumed boolean;
BEGIN
  moment := _moment(p_now);
  limiting := _limit(_open(p_queue, moment, true), p_limits, moment);
  q := limiting.q;
  resumed := q.paused AND NOT coalesce(p_paused, true);
  IF p_paused AND NOT q.paused THEN
    INSERT INTO pause (queue, since, actor) VALUES (q.id, moment, p_actor);
    DELETE FROM pause WHERE queue = q.id AND seq NOT IN (
      SELECT seq FROM pause WHERE queue = q.id ORDER BY seq DESC LIMIT p_pauses);
  ELSIF resumed THEN
    UPDATE pause SET until = moment WHERE queue = q.id AND until IS NULL;
  END IF;
  UPDATE queue SET paused = coalesce(p_paused, paused), keep = coalesce(p_keep, keep),
    remembers = remembers OR coalesce(p_keep, 0) > 0,
    history = coalesce(p_history, history), result_ttl = coalesce(p_result_ttl, result_ttl),
    ends = ends OR greatest(p_history, p_result_ttl, 0) > 0
  WHERE id = q.id RETURNING paused, keep, history, result_ttl INTO paused, keep, history, result_ttl;
  wakes := resumed OR limiting.changed;
  limits := _limits(q);
  RETURN NEXT;
END $$;

-- Delete a queue that is empty. Answers whether that was done, else what is in it is to be counted.
CREATE FUNCTION bide._delete(p_queue text, p_now bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  -- Who puts into it meanwhile shares the lock, as does a put that has not been committed.
  locked CONSTANT text := pg_advisory_xact_lock(_lock(p_queue));
  q CONSTANT queue := _open(p_queue, _moment(p_now));
BEGIN
  IF q.id IS NULL OR EXISTS (SELECT FROM message WHERE queue = q.id) THEN
    RETURN false;
  END IF;
  DELETE FROM queue WHERE id = q.id;
  DELETE FROM tally WHERE queue = q.id;
  DELETE FROM total WHERE queue = q.id;
  DELETE FROM lowered WHERE queue = q.id;
  DELETE FROM pause WHERE queue = q.id;
  PERFORM _drop_limits(q.limited);
  DELETE FROM ended WHERE queue = q.id;
  DELETE FROM forwarded WHERE queue = p_queue;
  RETURN true;
END $$;
