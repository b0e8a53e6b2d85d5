-- Put. Arrays hold a value for each message; an array that is null holds none: then all bodies are
-- JSON. A single delay is that of all. `_put` and `_replace` answer a row for each message that was
-- not stored, with where the one of that id stands, and last a row with the number 0: its `due` is the
-- moment of the put, its `until` how far the log had come then.

-- Store one message as most are: in a queue that is there, with an id that is free. Answers the moment
-- of the put; null where nothing was stored, because `_put` has to look at it. It does the same for a
-- single message in a third of the time, and sets nothing for its duration: its caller has the owner's
-- rights, a `search_path` and a `lock_timeout`.
CREATE FUNCTION bide._put_one(
  p_queue text, p_now bigint, p_id text, p_is_json boolean, p_data bytea, p_at bigint,
  p_delay bigint, p_priority integer, p_attempts integer, p_expires bigint, p_group text,
  p_headers text
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);
  locked CONSTANT text := pg_advisory_xact_lock_shared(_lock(p_queue));
  new_seq CONSTANT bigint := (nextval('seq') << 20) + 1;
  forgot boolean := false;
BEGIN
  IF session_user <> current_user THEN
    PERFORM _check_access(p_queue);
  END IF;
  LOOP
    WITH stored AS (
      INSERT INTO message (seq, rank, due, queue, attempts, attempt, size, state, priority, expires,
                           id, "group", created, is_json, data, headers)
      SELECT new_seq, _rank(0, new_due, p_priority), new_due, q.id, p_attempts, 0,
             _size(p_id, p_data, p_headers), 0, p_priority, p_expires, p_id, p_group, moment,
             p_is_json, p_data, p_headers
      FROM queue AS q
      WHERE name = p_queue AND (weighted OR p_priority = 0) AND (forgot OR NOT remembers)
      ON CONFLICT (queue, id) DO NOTHING RETURNING queue
    )
    INSERT INTO tally SELECT queue, 'new', _hour(new_due), 1 FROM stored;
    EXIT WHEN FOUND;
    PERFORM _forget(q, moment) FROM queue AS q WHERE name = p_queue AND remembers AND NOT forgot;
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
    forgot := true;
  END LOOP;
  IF p_at < moment THEN
    INSERT INTO lowered SELECT id, p_at * 256 FROM queue WHERE name = p_queue;
  END IF;
  RETURN moment;
END $$;

-- The same for an engine whose user is not the owner, or that shares the server's sessions with others.
CREATE FUNCTION bide._put_one_as_owner(
  p_queue text, p_now bigint, p_id text, p_is_json boolean, p_data bytea, p_at bigint,
  p_delay bigint, p_priority integer, p_attempts integer, p_expires bigint, p_group text,
  p_headers text
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp
SET lock_timeout = '250ms' AS $$
BEGIN
  RETURN _put_one(p_queue, p_now, p_id, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                  p_expires, p_group, p_headers);
END $$;

-- New messages as rows, numbered from `p_first` on in the order of the arrays.
CREATE FUNCTION bide._rows(
  p_first bigint, p_queue integer, p_moment bigint, p_ids text[], p_is_json boolean[], p_data bytea[],
  p_at bigint[], p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[],
  p_created bigint[]
) RETURNS SETOF bide.message LANGUAGE sql STABLE AS $$
  SELECT p_first + i.n, coalesce(i.died, _rank(0, d.due, coalesce(i.priority, 0)::integer)), d.due,
         coalesce(i.created, p_moment), i.expires, NULL::bigint, NULL::bigint, NULL::bigint,
         NULL::bigint, p_queue, coalesce(i.attempts, 10)::integer, coalesce(i.attempt, 0)::integer,
         _size(i.id, i.data, i.headers), NULL::integer, NULL::integer,
         (CASE WHEN i.died IS NULL THEN 0 ELSE 3 END)::smallint, coalesce(i.priority, 0)::smallint,
         coalesce(i.is_json, true), i.id COLLATE "C", i."group" COLLATE "C", NULL::text, i.headers,
         i.failures, NULL::text, i.data
  FROM unnest(p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts, p_expires, p_group,
              p_headers, p_attempt, p_failures, p_died, p_created) WITH ORDINALITY
    AS i(id, is_json, data, at, delay, priority, attempts, expires, "group", headers, attempt,
         failures, died, created, n),
    LATERAL (SELECT coalesce(i.at, p_moment + coalesce(i.delay, p_delay[1], 0)) AS due) AS d
$$;

-- Store messages; one whose id is taken is left out. Whether they are new or taken, they are locked in
-- the order of their ids, so that nobody waits in a circle. `p_hopeful`: the caller tries again without
-- it after a unique violation, which undoes the transaction. That takes half of the time where all
-- messages are new. `p_ascending`: the ids are in order, and the server need not sort the messages.
CREATE FUNCTION bide._put(
  p_queue text, p_now bigint, p_ids text[], p_is_json boolean[], p_data bytea[], p_at bigint[],
  p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[],
  p_created bigint[], p_hopeful boolean DEFAULT false, p_ascending boolean DEFAULT false
) RETURNS TABLE (number bigint, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment, true);
  first CONSTANT bigint := nextval('seq') << 20;
  stored bigint[];  -- null: all of them
  moves tally[] := '{}';
  new message;
  met message;
BEGIN
  IF p_priority IS NOT NULL AND NOT q.weighted THEN
    UPDATE queue SET weighted = true
    WHERE id = q.id AND NOT weighted AND EXISTS (SELECT FROM unnest(p_priority) AS p WHERE p > 0);
  END IF;
  -- Ids that were made here stand close together, and nothing is between them. Of others each is sought
  -- by itself: up to version 16 a list of them may be a mere filter.
  IF p_hopeful AND (
    left(p_ids[1], 20) = left(p_ids[cardinality(p_ids)], 20) AND NOT EXISTS (
      SELECT FROM message
      WHERE queue = q.id AND id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]
    ) OR NOT EXISTS (
      SELECT FROM unnest(p_ids) AS i(id),
                  LATERAL (SELECT FROM message AS m WHERE m.queue = q.id AND m.id = i.id LIMIT 1) AS m
    )
  ) THEN
    IF p_ascending THEN
      INSERT INTO message
      SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                          p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created);
    ELSE
      INSERT INTO message
      SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                          p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created)
      ORDER BY id, seq;
    END IF;
  ELSE
    stored := '{}';
    FOR new IN
      SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                          p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created)
      ORDER BY id, seq
    LOOP
      INSERT INTO message SELECT new.* ON CONFLICT (queue, id) DO NOTHING;
      IF FOUND THEN
        stored := stored || (new.seq - first);
        CONTINUE;
      END IF;
      met := _locked(q.id, new.id);
      IF met.seq IS NULL THEN
        RAISE EXCEPTION 'message % was deleted while its id was put again', new.id
          USING ERRCODE = 'serialization_failure';
      END IF;
      IF met.state = 2 AND met.rank <= moment THEN
        moves := moves || _moved(met, _lapse(met, moment), 'lapsed', moment);
        met := _locked(q.id, new.id);
      END IF;
      number := new.seq - first;
      SELECT * INTO state, due, until, holder FROM _stands(met, moment);
      RETURN NEXT;
    END LOOP;
  END IF;
  IF p_at IS NULL AND p_died IS NULL AND cardinality(p_delay) = 1 THEN
    INSERT INTO tally SELECT q.id, 'new', _hour(moment + p_delay[1]), n
    FROM coalesce(cardinality(stored), cardinality(p_ids)) AS n WHERE n > 0;
  ELSE
    INSERT INTO tally
    SELECT q.id, 'new', _hour(coalesce(at, moment + coalesce(delay, p_delay[1], 0))), count(*)
    FROM unnest(p_ids, p_at, p_delay, p_died) WITH ORDINALITY AS i(id, at, delay, died, n)
    WHERE died IS NULL AND (stored IS NULL OR n = ANY (stored)) GROUP BY 3;
  END IF;
  IF p_at IS NOT NULL THEN
    PERFORM _lower(q.id, moment, p_at);
  END IF;
  IF p_died IS NOT NULL THEN
    INSERT INTO tally SELECT q.id, what, -1, count(*)
    FROM unnest(p_died) WITH ORDINALITY AS i(died, n), unnest('{put,dead,died}'::text[]) AS what
    WHERE died IS NOT NULL AND (stored IS NULL OR n = ANY (stored)) GROUP BY what;
  END IF;
  IF cardinality(moves) > 0 THEN
    PERFORM _count_moves(moves);
  END IF;
  number := 0; state := NULL; due := moment; until := pg_current_wal_insert_lsn() - '0/0'; holder := NULL;
  RETURN NEXT;
END $$;

-- Store messages one by one, in the place of those with their ids that nobody holds. With `p_revive`
-- only dead letters are replaced; with `p_only_seqs` nothing is stored but in those places. Of messages
-- with `p_latest` a row tells what became of them, and `successor` when what follows a leased one is due.
CREATE FUNCTION bide._replace(
  p_queue text, p_now bigint, p_ids text[], p_is_json boolean[], p_data bytea[], p_at bigint[],
  p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[],
  p_created bigint[], p_latest bigint[], p_revive boolean, p_only_seqs bigint[]
) RETURNS TABLE (number bigint, state smallint, due bigint, until bigint, holder text, done boolean,
                 successor bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment, true);
  first CONSTANT bigint := nextval('seq') << 20;
  moves tally[] := '{}';
  was message;
  new message;
  lapsed message;
  n bigint;
  begun bigint;  -- when the id was first put, of messages with `p_latest`
BEGIN
  FOR new IN
    SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                        p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created)
    ORDER BY id, seq
  LOOP
    n := new.seq - first;
    was := _locked(q.id, new.id);
    IF was.state = 2 AND was.rank <= moment THEN
      lapsed := _lapse(was, moment);
      moves := moves || _moved(was, lapsed, 'lapsed', moment);
      was := lapsed;
    END IF;
    done := false;
    successor := NULL;
    IF was.state = 2 AND p_latest[n] IS NOT NULL AND NOT p_revive AND p_only_seqs IS NULL
       AND p_died[n] IS NULL THEN
      begun := coalesce((was.successor::json ->> 'created')::bigint, moment);
      successor := least(new.due, begun + p_latest[n]);
      UPDATE message SET successor = json_build_object(
        'due', _replace.successor, 'created', begun, 'priority', new.priority,
        'attempts', new.attempts, 'expires', new.expires, 'group', new."group",
        'headers', new.headers, 'is_json', new.is_json,
        'data', encode(new.data, 'base64'))
      WHERE queue = q.id AND id = new.id;
      UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted AND new.priority > 0;
      number := n;
      done := true;
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF was.seq IS NULL AND (p_revive OR p_only_seqs IS NOT NULL)
       OR was.state IN (2, 4, 5) OR was.state < 2 AND p_revive
       OR was.seq <> ALL (p_only_seqs) THEN
      number := n;
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      RETURN NEXT;
      CONTINUE;
    END IF;
    IF p_latest[n] IS NOT NULL THEN
      begun := coalesce(nullif(was.created, 0), moment);
      new.due := least(new.due, begun + p_latest[n]);
      IF new.state = 0 THEN
        new.rank := _rank(0, new.due, new.priority);
        PERFORM _lower(q.id, moment, ARRAY[new.due]);
      END IF;
    END IF;
    IF was.seq IS NULL THEN
      INSERT INTO message SELECT new.* ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'message % was put by two at a time', new.id
          USING ERRCODE = 'serialization_failure';
      END IF;
      moves := moves || _moved(NULL, new, 'put');
    ELSE
      new.seq := was.seq;
      new.created := coalesce(p_created[n], CASE WHEN p_latest[n] IS NULL THEN was.created ELSE begun END);
      DELETE FROM message WHERE queue = q.id AND id = new.id;
      INSERT INTO message SELECT new.*;
      moves := moves || _moved(was, new, CASE WHEN was.state = 3 THEN 'revived' END);
    END IF;
    IF new.priority > 0 AND NOT q.weighted THEN
      UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted;
    END IF;
    IF p_latest[n] IS NOT NULL THEN
      number := n;
      done := true;
      SELECT * INTO state, due, until, holder FROM _stands(new, moment);
      RETURN NEXT;
    END IF;
  END LOOP;
  IF cardinality(moves) > 0 THEN
    PERFORM _count_moves(moves);
  END IF;
  PERFORM _lower(q.id, moment, p_at) WHERE p_at IS NOT NULL;
  number := 0; state := NULL; due := moment; until := pg_current_wal_insert_lsn() - '0/0'; holder := NULL;
  RETURN NEXT;
END $$;
