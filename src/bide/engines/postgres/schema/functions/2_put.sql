-- Put. Arrays hold a value for each message; an array that is null holds none: then all bodies are
-- JSON. A single delay is that of all.

-- Store one message in the usual case: in a queue that exists, with an id that is free. Answers the time
-- of the put (the statement that stores it waits for a deletion of the queue, as in `_open`, before it looks
-- for the queue); null if nothing was stored: then `_put` has to do it, which takes three times as long.
-- `p_sender`, here and elsewhere: who sent the batch of this one command, if it has an identity.
CREATE FUNCTION bide._put_one(
  p_queue text, p_now bigint, p_id text, p_is_json boolean, p_data bytea, p_at bigint,
  p_delay bigint, p_priority bigint, p_attempts bigint, p_expires bigint, p_group text,
  p_headers text, p_sender text DEFAULT NULL, p_number bigint DEFAULT NULL, p_place text DEFAULT NULL,
  p_rule text DEFAULT NULL, p_run text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);
  new_seq CONSTANT bigint := (nextval('seq') << 20) + 1;
  forgot boolean := false;  -- whether messages that were remembered for long enough are deleted
BEGIN
  IF session_user <> current_user THEN
    PERFORM _check_access(p_queue), _check_name('id', p_id), _check_name('group', p_group);
  END IF;
  IF p_sender IS NOT NULL THEN
    PERFORM _begin(p_sender, p_number, '{"' || p_place || '":[[0,false,null,' || moment || ',null,null,null]]}');
  END IF;
  IF NOT _sees_all() THEN  -- see `_open`
    PERFORM FROM queue WHERE name = p_queue FOR KEY SHARE;
  END IF;
  IF p_group IS NOT NULL THEN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(key, hashtext(p_queue || ' ' || p_group) & LAST_GROUP_LOCK))  -- see `_keep_open`
    FROM secret;
  END IF;
  LOOP
    WITH stored AS (
      INSERT INTO message (seq, rank, due, queue, attempts, attempt, size, state, priority, expires,
                           id, "group", created, is_json, data, headers, rule, run)
      SELECT new_seq, _rank(DELAYED_STATE, new_due, p_priority), new_due, q.id, p_attempts, 0,
             _size(p_id, p_data, p_headers), DELAYED_STATE, p_priority, p_expires, p_id, p_group, moment,
             p_is_json, p_data, p_headers, p_rule, p_run
      FROM queue AS q
      WHERE name = p_queue AND (weighted OR p_priority = 0) AND (forgot OR NOT remembers)
        AND (p_group IS NULL OR NOT closes OR _closed_until(q.id, p_group, moment) IS NULL)
      ON CONFLICT (queue, id) DO NOTHING RETURNING queue
    )
    INSERT INTO tally SELECT queue, 'new', _hour(new_due), 1 FROM stored;
    EXIT WHEN FOUND;
    -- The queue is new or the id exists, or the queue remembers messages: then forget those, and try again.
    PERFORM _forget(q, moment) FROM queue AS q
    WHERE name = p_queue AND remembers AND NOT forgot AND _may_forget();
    IF NOT FOUND THEN
      DELETE FROM answer WHERE sender = p_sender AND number = p_number;
      RETURN NULL;
    END IF;
    forgot := true;
  END LOOP;
  IF p_at < moment THEN
    INSERT INTO lowered SELECT id, p_at * PRIORITIES FROM queue WHERE name = p_queue;
  END IF;
  RETURN moment;
END $$;

-- New messages as rows, numbered from `p_first` on in the order of the arrays. The columns are in the order of
-- the table `message`; a dead letter has as its rank when it died.
CREATE FUNCTION bide._rows(
  p_first bigint, p_queue integer, p_moment bigint, p_ids text[], p_is_json boolean[], p_data bytea[],
  p_at bigint[], p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[],
  p_created bigint[], p_rule text[], p_run text[]
) RETURNS SETOF bide.message LANGUAGE sql STABLE AS $$
  SELECT p_first + i.n, coalesce(i.died, _rank(DELAYED_STATE, d.due, coalesce(i.priority, 0))), d.due,
         coalesce(i.created, p_moment), i.expires, NULL::bigint, NULL::bigint, NULL::bigint,
         NULL::bigint, p_queue, coalesce(i.attempts, DEFAULT_ATTEMPTS)::integer, coalesce(i.attempt, 0)::integer,
         _size(i.id, i.data, i.headers), NULL::integer, NULL::integer,
         (CASE WHEN i.died IS NULL THEN DELAYED_STATE ELSE DEAD_STATE END)::smallint, coalesce(i.priority, 0)::smallint,
         coalesce(i.is_json, true), i.id COLLATE "C", i."group" COLLATE "C", NULL::text, i.headers,
         i.failures, NULL::text, i.data, NULL::text, NULL::text, NULL::text, i.rule, i.run
  FROM unnest(p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts, p_expires, p_group,
              p_headers, p_attempt, p_failures, p_died, p_created, p_rule, p_run) WITH ORDINALITY
    AS i(id, is_json, data, at, delay, priority, attempts, expires, "group", headers, attempt,
         failures, died, created, rule, run, n),
    LATERAL (SELECT coalesce(i.at, p_moment + coalesce(i.delay, p_delay[1], 0)) AS due) AS d
$$;

-- Store messages, one by one or all at once. If an id is taken, and no worker holds the message, `p_mode`
-- decides:
--
-- | mode | the message that is there |
-- |---|---|
-- | keep | stays |
-- | replace | is replaced, unless it has ended |
-- | revive | is replaced if it is dead; nothing is stored where there is none |
--
-- With `p_only_seqs`, only messages with these numbers are replaced, and nothing else is stored. With
-- `p_latest` each put of an id delays it, up to so long after the first; what is put while a worker holds
-- the message becomes its successor.
--
-- Ids are locked in their order, new ones too, so that transactions do not wait for each other.
-- `p_hopeful`: the caller tries again without it after a unique violation, which undoes the transaction.
-- That halves the time if all messages are new.
--
-- What would be stored in a closed group is refused: the state is CLOSED_STATE, and `until` when that opens.
-- What was to be revived is cancelled then.
--
-- Answers a row for each message that was not stored, or has `p_latest`, with the place of the one of
-- that id; `successor`: when its successor is due. The last row has the number 0: its `due` is the time
-- of the put, its `until` how far the log had come then.
CREATE FUNCTION bide._put(
  p_queue text, p_now bigint, p_mode text, p_hopeful boolean, p_only_seqs bigint[], p_ids text[],
  p_is_json boolean[], p_data bytea[], p_at bigint[], p_delay bigint[], p_priority bigint[],
  p_attempts bigint[], p_expires bigint[], p_group text[], p_headers text[],
  p_latest bigint[] DEFAULT NULL, p_attempt bigint[] DEFAULT NULL, p_failures text[] DEFAULT NULL,
  p_died bigint[] DEFAULT NULL, p_created bigint[] DEFAULT NULL, p_rule text[] DEFAULT NULL,
  p_run text[] DEFAULT NULL, p_sender text DEFAULT NULL,
  p_number bigint DEFAULT NULL, p_place text DEFAULT NULL
) RETURNS TABLE (number bigint, state smallint, due bigint, until bigint, holder text, done boolean,
                 successor bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q queue;
  first CONSTANT bigint := nextval('seq') << 20;  -- messages have the numbers behind it
  moves tally[] := '{}';     -- changes of the counters
  was message;               -- the message of that id that is there
  new message;               -- the one that is put; then the one whose place is answered
  latest bigint;             -- how many ms after `begun` the message is due at most
  begun bigint;              -- when an id with `latest` was first put
  outcomes json[] := '{}';   -- the rows that are answered, to be remembered
  refuses boolean := false;  -- whether some of the groups are closed
  shut bigint;               -- until when the group of the message is closed
  effect text;               -- what the put does, unless the group is closed: store, replace or follow; null: nothing
BEGIN
  IF p_group IS NOT NULL THEN
    IF session_user <> current_user THEN
      PERFORM _check_access(p_queue);
    END IF;
    PERFORM _keep_open(p_queue, p_group);
  END IF;
  q := _open(p_queue, moment, true);
  IF q.closes THEN
    refuses := EXISTS (
      SELECT FROM unnest(p_group) AS name WHERE _closed_until(q.id, name, moment) IS NOT NULL);
  END IF;
  IF session_user <> current_user THEN
    PERFORM _check_name('id', i.id), _check_name('group', i."group")
    FROM unnest(p_ids, p_group) AS i(id, "group");
  END IF;
  IF p_sender IS NOT NULL THEN
    PERFORM _begin(p_sender, p_number);
  END IF;
  IF p_priority IS NOT NULL AND NOT q.weighted THEN
    UPDATE queue SET weighted = true
    WHERE id = q.id AND NOT weighted AND EXISTS (SELECT FROM unnest(p_priority) AS p WHERE p > 0);
  END IF;
  -- Ids that were made here are close together, with no other between them. Each other id is looked
  -- up by itself: up to version 16 a list of them may be a mere filter.
  IF p_hopeful AND NOT refuses AND (
    left(p_ids[1], 20) = left(p_ids[cardinality(p_ids)], 20) AND NOT EXISTS (
      SELECT FROM message
      WHERE queue = q.id AND id BETWEEN p_ids[1] AND p_ids[cardinality(p_ids)]
    ) OR NOT EXISTS (
      SELECT FROM unnest(p_ids) AS i(id),
                  LATERAL (SELECT FROM message AS m WHERE m.queue = q.id AND m.id = i.id LIMIT 1) AS m
    )
  ) THEN
    INSERT INTO message
    SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority,
                        p_attempts, p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created,
                        p_rule, p_run)
    ORDER BY id, seq;
    INSERT INTO tally
    SELECT q.id, 'new', _hour(coalesce(at, moment + coalesce(delay, p_delay[1], 0))), count(*)
    FROM unnest(p_ids, p_at, p_delay) AS i(id, at, delay) GROUP BY 3;
  ELSE
    FOR new IN
      SELECT * FROM _rows(first, q.id, moment, p_ids, p_is_json, p_data, p_at, p_delay, p_priority,
                          p_attempts, p_expires, p_group, p_headers, p_attempt, p_failures, p_died, p_created,
                          p_rule, p_run)
      ORDER BY id, seq
    LOOP
      number := new.seq - first;
      latest := p_latest[number];
      successor := NULL;
      shut := CASE WHEN refuses AND new.state = DELAYED_STATE THEN _closed_until(q.id, new."group", moment) END;
      LOOP  -- until it is stored, or the one that is there is locked
        was := _locked(q.id, new.id, moment);
        -- What `_open` would have forgotten, but for the isolation of the transaction; or if `_fold` had noted it.
        IF was.state > DEAD_STATE AND NOT (q.remembers AND _may_forget()) AND was.rank <= moment
           - greatest(q.keep, (CASE was.state WHEN EXPIRED_STATE THEN EXPIRED_KEEP END)) THEN
          DELETE FROM message WHERE queue = q.id AND id = new.id;
          moves := _joined(moves, _moved(was, NULL, NULL));
          CONTINUE;
        END IF;
        EXIT WHEN was.state IS NOT NULL OR p_mode = 'revive' OR p_only_seqs IS NOT NULL OR shut IS NOT NULL;
        new.seq := coalesce(was.seq, new.seq);  -- it takes the place of one that is gone just now
        begun := moment;
        new := _debounced(new, begun + latest, moment);
        INSERT INTO message SELECT new.* ON CONFLICT (queue, id) DO NOTHING;
        EXIT WHEN FOUND;
      END LOOP;
      effect := CASE
        WHEN was.state IS NULL AND p_mode <> 'revive' AND p_only_seqs IS NULL THEN 'store'
        WHEN (was.state < LEASED_STATE AND p_mode = 'replace' OR was.state = DEAD_STATE AND p_mode <> 'keep')
             AND coalesce(was.seq = ANY (p_only_seqs), true) THEN 'replace'
        WHEN was.state = LEASED_STATE AND p_mode = 'replace' AND latest IS NOT NULL AND p_only_seqs IS NULL
             AND new.state = DELAYED_STATE THEN 'follow'
      END;
      done := effect IS NOT NULL AND shut IS NULL;
      IF done AND effect = 'store' THEN
        moves := _joined(moves, _moved(NULL, new, 'put'));
      ELSIF done AND effect = 'replace' THEN
        begun := coalesce(nullif(was.created, 0), moment);
        new := _debounced(new, begun + latest, moment);
        new.seq := was.seq;
        new.created := coalesce(p_created[number], CASE WHEN latest IS NULL THEN was.created ELSE begun END);
        DELETE FROM message WHERE queue = q.id AND id = new.id;
        INSERT INTO message SELECT new.*;
        PERFORM _remember_return(was, new.state, new.rank);
        moves := _joined(moves, _moved(was, new, CASE WHEN was.state = DEAD_STATE AND new.state <> DEAD_STATE THEN 'revived' END));
      ELSIF done THEN
        begun := coalesce((was.successor::json ->> 'created')::bigint, moment);
        successor := least(new.due, begun + latest);
        UPDATE message SET successor = json_build_object(
          'due', _put.successor, 'created', begun, 'priority', new.priority,
          'attempts', new.attempts, 'expires', new.expires, 'group', new."group",
          'headers', new.headers, 'is_json', new.is_json, 'data', E'\\x' || encode(new.data, 'hex'),
          'rule', new.rule, 'run', new.run)
        WHERE queue = q.id AND id = new.id;
        new := was;
      ELSE
        new := was;
      END IF;
      IF NOT done OR latest IS NOT NULL THEN
        SELECT * INTO state, due, until, holder FROM _stands(new, moment);
        IF effect IS NOT NULL AND NOT done THEN
          IF p_mode = 'revive' THEN  -- what is revived into a closed group ends there
            PERFORM _remember_end(q, was, CANCELLED_END, moment, NULL) WHERE greatest(q.history, q.result_ttl) > 0;
            DELETE FROM message WHERE queue = q.id AND id = was.id;
            moves := _joined(moves, _moved(was, NULL, 'cancelled'));
          END IF;
          state := CLOSED_STATE; due := NULL; until := shut; holder := NULL;
        END IF;
        RETURN NEXT;
        IF p_sender IS NOT NULL THEN
          outcomes := outcomes || _outcome(number, done, state, due, until, holder, successor);
        END IF;
      END IF;
    END LOOP;
    PERFORM _count_moves(moves);
  END IF;
  IF p_at IS NOT NULL THEN
    PERFORM _lower(q.id, moment, p_at);
  END IF;
  IF p_sender IS NOT NULL THEN
    outcomes := outcomes || _outcome(0, false, NULL, moment, NULL, NULL, NULL);
    PERFORM _remember(p_sender, p_number, p_place, outcomes);
  END IF;
  number := 0; state := NULL; due := moment; until := pg_current_wal_insert_lsn() - '0/0'; holder := NULL;
  done := false; successor := NULL;
  RETURN NEXT;
END $$;

-- A new message, due at `p_latest` at the latest.
CREATE FUNCTION bide._debounced(p_message bide.message, p_latest bigint, p_moment bigint)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_latest < p_message.due THEN
    p_message.due := p_latest;
    IF p_message.state = DELAYED_STATE THEN
      p_message.rank := _rank(DELAYED_STATE, p_latest, p_message.priority);
      PERFORM _lower(p_message.queue, p_moment, ARRAY[p_latest]);
    END IF;
  END IF;
  RETURN p_message;
END $$;
