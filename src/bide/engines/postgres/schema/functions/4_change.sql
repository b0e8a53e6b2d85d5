-- What may be done to messages by id, and to many by a rule.

-- Lock the messages that several commands of a transaction name, in the order of all commands; not those
-- that are being settled.
CREATE FUNCTION bide._lock_ids(p_queue text, p_ids text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
BEGIN
  PERFORM _locked(q.id, id, NULL, 0) FROM unnest(p_ids) AS id ORDER BY id COLLATE "C";
END $$;

-- Do one thing to each message. Answers a row for each that is there: whether it was done, where the
-- message is now (`state` null: it is gone; SETTLING_STATE: see `_awaited`, only an ack waits longer;
-- CLOSED_STATE: it was cancelled instead, because its group is closed). If leases
-- of a limited queue have ended, the last row has the number 0: its `due` is when to claim again. An ack
-- of which all is done answers no row, where there are no limits, and else always that last row.
--
-- | verb | which messages | what |
-- |---|---|---|
-- | cancel, reschedule, bury_unheld | delayed, ready | delete; move to a due time; dead |
-- | stop | delayed, ready, leased | delete; of a leased one, ask its worker to stop: that is not done yet |
-- | postpone | delayed, ready, with `p_if_dues` due then | move to the due time in `p_next`, but keep the planned one |
-- | edit | delayed, ready, without a due time also dead | change what `p_edit` names |
-- | revive, purge, move | dead | ready or delayed again; delete; the same, it is in another store now |
-- | release | leased, by `p_holder` if given | end the lease, as a failed attempt |
-- | ack, renew, retry, bury, extend | leased, by the token given | as the holder says; if it was asked to stop, all but ack and extend delete |
--
-- `p_untouched`: a retry that counts no attempt (a `RetryCommand` with `release`).
-- `p_notes`, as JSON: of an ack the results, of an extend the reports; with no `p_delay` the leases stay.
-- Of an edit `p_next`, `p_notes` and `p_runs` are the due times, rules and runs of each message; null: that stays.
--
-- Of a renew `p_next` and `p_runs` are the next runs, and `p_how` is how those end that are held: an ack is a renew
-- of which no next run is planned. With `p_how` dead, a bury makes also those dead letters that repeat.
CREATE FUNCTION bide._change(
  p_verb text, p_queue text, p_now bigint, p_ids text[], p_tokens bigint[] DEFAULT NULL,
  p_at bigint DEFAULT NULL, p_delay bigint DEFAULT 0, p_if_due bigint DEFAULT NULL,
  p_reason text DEFAULT '""', p_untouched boolean DEFAULT false, p_only_seqs bigint[] DEFAULT NULL,
  p_actor text DEFAULT NULL, p_notes text[] DEFAULT NULL, p_edit text DEFAULT NULL,
  p_next bigint[] DEFAULT NULL, p_runs text[] DEFAULT NULL, p_how text DEFAULT 'acked',
  p_if_dues bigint[] DEFAULT NULL, p_sender text DEFAULT NULL, p_number bigint DEFAULT NULL, p_place text DEFAULT NULL,
  p_holder text DEFAULT NULL
) RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text,
                 successor bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);  -- null: due times stay
  edit CONSTANT json := p_edit;
  remembers CONSTANT boolean := greatest(q.history, q.result_ttl) > 0;  -- how messages end
  moves tally[] := '{}';         -- changes of the counters
  dues bigint[] := '{}';         -- new due times of delayed messages
  acked_places bigint[] := '{}'; -- of the ids that were acked all at once
  named record;                  -- the id of one message, with its token, its note, when it is due next, and so on
  was message;                   -- the message as it is found
  new message;                   -- as it is to be; a row of nulls: it is deleted
  cause text;                    -- the counter of what was done; null: none
  ending integer;                -- how the message ends; null: it does not, or `_fail` remembers it
  may_stop boolean;              -- whether its worker is to be asked to stop
  gives_up boolean;              -- whether nothing is to follow its run any more
  goes_on boolean;               -- whether its next run takes its place
  is_last boolean;               -- whether its run is the last one, as its rule says
  dies boolean;                  -- whether a failed attempt makes it a dead letter
  ends_lease boolean := false;   -- whether a lease of any of the messages has ended
  patience integer := CASE WHEN p_verb NOT IN ('ack', 'renew') THEN SETTLING_WAIT END;  -- see `_locked`
  outcomes json[] := '{}';       -- the rows that are answered, to be remembered
  shut bigint;                   -- until when the group is closed in which the message would wait
BEGIN
  IF p_sender IS NOT NULL THEN
    PERFORM _begin(p_sender, p_number, '{"' || p_place || '":[]}');
  END IF;
  IF p_verb = 'extend' AND p_delay IS NOT NULL AND coalesce(p_delay < q.lease, true) THEN
    PERFORM _shorten(q, p_delay);
  END IF;
  IF (edit ->> 'priority')::integer > 0 THEN
    UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted;
  END IF;
  IF p_verb = 'ack' AND q.keep = 0 AND NOT remembers THEN  -- most acks: one statement for all
    acked_places := _ack(q.id, moment, p_ids, p_tokens);
    IF cardinality(acked_places) = cardinality(p_ids) AND q.limited IS NULL THEN
      RETURN;
    END IF;
    ends_lease := cardinality(acked_places) > 0;
    RETURN QUERY SELECT n, true, NULL::smallint, NULL::bigint, NULL::bigint, NULL::text, NULL::bigint
                 FROM unnest(acked_places) AS n;
    IF p_sender IS NOT NULL THEN
      outcomes := ARRAY(SELECT _outcome(n, true, NULL, NULL, NULL, NULL, NULL) FROM unnest(acked_places) AS n);
    END IF;
  END IF;
  IF p_verb IN ('cancel', 'stop') AND cardinality(p_ids) = 1 AND NOT remembers AND p_if_due IS NULL
     AND p_only_seqs IS NULL THEN  -- most cancels: they delete at once what they would lock
    DELETE FROM message WHERE queue = q.id AND id = p_ids[1] AND state < LEASED_STATE
    RETURNING * INTO was;
    IF FOUND THEN
      due := was.due;
      PERFORM _note_group(was, NULL) WHERE was.limited IS NOT NULL AND was.state = READY_STATE;
      INSERT INTO tally VALUES (q.id, 'pending', _hour(due), -1), (q.id, 'cancelled', -1, 1);
      IF p_sender IS NOT NULL THEN
        PERFORM _remember(p_sender, p_number, p_place, ARRAY[_outcome(1, true, NULL, due, NULL, NULL, NULL)]);
      END IF;
      number := 1; done := true;
      RETURN NEXT;
      RETURN;
    END IF;
  END IF;
  FOR named IN
    SELECT * FROM unnest(p_ids, p_tokens, p_notes, p_next, p_runs, p_if_dues)
                  WITH ORDINALITY AS w(id, token, note, due, run, if_due, n)
    WHERE n <> ALL (acked_places) ORDER BY id COLLATE "C", n  -- all commands lock in this order
  LOOP
    was := _locked(q.id, named.id, moment, patience);
    IF was.state IS NULL AND p_verb IN ('cancel', 'stop') AND was.stopping IS NOT NULL AND p_only_seqs IS NULL
       AND (p_if_due IS NULL OR was.due = p_if_due) THEN  -- the end of its lease has cancelled it just now
      number := named.n;
      done := true;
      SELECT NULL, was.due, NULL, NULL, NULL INTO state, due, until, holder, successor;
      RETURN NEXT;
      IF p_sender IS NOT NULL THEN
        outcomes := outcomes || _outcome(number, done, state, due, until, holder, successor);
      END IF;
    END IF;
    CONTINUE WHEN was.state IS NULL;
    IF was.state = SETTLING_STATE THEN
      patience := 0;  -- of many, only the first is waited for
    END IF;
    number := named.n;
    done := (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs)) AND CASE
      WHEN p_verb IN ('cancel', 'stop', 'reschedule', 'bury_unheld') THEN
        was.state < LEASED_STATE AND (p_if_due IS NULL OR was.due = p_if_due)
      WHEN p_verb = 'postpone' THEN was.state < LEASED_STATE AND was.due = coalesce(named.if_due, was.due)
      WHEN p_verb = 'edit' THEN
        (p_if_due IS NULL OR was.due = p_if_due)
        AND (was.state < LEASED_STATE OR was.state = DEAD_STATE AND new_due IS NULL AND named.due IS NULL
        -- One that a move or import has under way is refused: the change would be lost.
        AND NOT _in_transit(was))
      WHEN p_verb IN ('revive', 'purge', 'move') THEN was.state = DEAD_STATE
      WHEN p_verb = 'release' THEN
        was.state = LEASED_STATE AND (p_holder IS NULL OR was.holder IS NOT DISTINCT FROM p_holder)
      ELSE was.state = LEASED_STATE AND was.token = named.token
    END;
    may_stop := p_verb = 'stop' AND was.state = LEASED_STATE AND (p_if_due IS NULL OR was.due = p_if_due)
             AND (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs));
    successor := NULL;
    gives_up := p_verb = 'cancel' AND was.state = LEASED_STATE AND (was.successor IS NOT NULL OR was.run IS NOT NULL)
                AND p_if_due IS NULL AND p_only_seqs IS NULL;
    IF gives_up THEN  -- the message stays; what was put meanwhile is cancelled, and it repeats no longer
      successor := (was.successor::json ->> 'due')::bigint;
      UPDATE message SET successor = NULL, run = NULL WHERE queue = q.id AND id = was.id;
    END IF;
    IF NOT done THEN
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      IF may_stop THEN
        PERFORM _stop(was, p_actor);
        state := STOPPING_STATE;
      ELSIF gives_up AND was.successor IS NULL THEN
        state := ENDING_STATE;
      END IF;
      RETURN NEXT;
      IF p_sender IS NOT NULL THEN
        outcomes := outcomes || _outcome(number, done, state, due, until, holder, successor);
      END IF;
      CONTINUE;
    END IF;
    IF p_verb IN ('ack', 'renew') THEN
      is_last := named.due IS NULL AND was.successor IS NULL;
      goes_on := was.run IS NOT NULL AND was.successor IS NULL AND (p_verb = 'ack' OR named.due IS NOT NULL)
                 AND NOT (q.closes AND _closed_until(q.id, was."group", moment) IS NOT NULL);
    END IF;
    shut := NULL;
    IF q.closes AND was.successor IS NOT NULL AND p_verb IN ('ack', 'renew', 'retry', 'bury', 'release') THEN
      shut := _closed_until(q.id, was.successor::json ->> 'group', moment);
      IF shut IS NOT NULL THEN
        was.successor := NULL;
      END IF;
    END IF;
    new := was;
    cause := NULL;
    ending := NULL;
    IF p_verb IN ('reschedule', 'revive', 'edit') AND coalesce(named.due, new_due) IS NOT NULL THEN
      new.state := DELAYED_STATE;
      new.due := coalesce(named.due, new_due);
      new.planned := NULL;
      new.asked := CASE p_verb WHEN 'revive' THEN coalesce(was.asked, was.planned, was.due) END;
      new.expires := was.expires + was.due - coalesce(was.planned, was.due);  -- as its put asked
    END IF;
    CASE p_verb
      WHEN 'cancel', 'stop' THEN
        new := NULL;
        cause := 'cancelled';
        ending := CANCELLED_END;
      WHEN 'purge' THEN
        new := NULL;
        cause := 'purged';
        ending := PURGED_END;
      WHEN 'move' THEN
        new := NULL;
        cause := 'moved';
        ending := MOVED_END;
      WHEN 'reschedule' THEN NULL;
      WHEN 'postpone' THEN
        new := json_populate_record(new, coalesce(edit, '{}'));
        new.state := DELAYED_STATE;
        new.due := named.due;
        new.planned := nullif(coalesce(was.planned, was.due), new.due);
        new.expires := was.expires - (new.due - was.due);
      WHEN 'revive' THEN
        new.attempt := 0;
        cause := 'revived';
      WHEN 'edit' THEN
        new := json_populate_record(new, edit);
        -- With another rule and another run, this one has all attempts. If the message repeats no longer, it is
        -- delivered once more: also if this run has used them up.
        IF (edit ->> 'rule' <> coalesce(was.rule, '') AND edit ->> 'run' <> coalesce(was.run, '')
            OR json_typeof(edit -> 'run') = 'null' AND was.run IS NOT NULL AND was.attempt >= was.attempts)
           AND was.state <> DEAD_STATE THEN
          new.attempt := 0;
          new.failures := NULL;
        END IF;
        new.rule := coalesce(named.note, new.rule);
        new.run := coalesce(named.run, new.run);
        IF edit -> 'expires' IS NOT NULL THEN  -- a retry keeps the time at which it expires
          new.expires := new.expires - (new.due - coalesce(new.planned, new.due));
        END IF;
      WHEN 'bury_unheld' THEN
        new.state := DEAD_STATE;
        new.rank := moment;
        new.failures := _failed(was.failures, was.attempt, moment, '', p_reason, NULL);
      WHEN 'extend' THEN
        IF p_delay IS NOT NULL THEN
          new.rank := moment + p_delay;
          new.extended := coalesce(was.extended, 0) + 1;
        END IF;
        IF named.note IS NOT NULL THEN
          new.progress := left(named.note, -1) || ',"moment":' || moment || '}';
        END IF;
      WHEN 'ack', 'renew' THEN
        IF p_how = 'acked' THEN
          cause := 'acked';
          ending := ACKED_END;
          new.state := ACKED_STATE;
          new.rank := moment;
          new.attempt := was.attempt + 1;
          IF goes_on THEN
            new := _next_run(was, coalesce(named.due, moment), coalesce(named.run, _ended_run(was.run)));
          ELSIF was.successor IS NOT NULL THEN
            new := _follow(was, moment);
          ELSIF q.keep = 0 THEN
            new := NULL;
          END IF;
          IF goes_on OR was.successor IS NOT NULL THEN
            moves := moves || (q.id, 'put', -1, 1)::tally;
          END IF;
        ELSE
          new := _renewed(was, p_how, goes_on, is_last, named.due, named.run, moment);
        END IF;
        IF goes_on THEN
          dues := dues || new.due;
        END IF;
      ELSE  -- bury, release, retry
        IF was.stopping IS NOT NULL THEN
          new := _stopped(was, moment);
        ELSIF NOT p_untouched THEN
          dies := (p_verb = 'bury' OR was.attempt + 1 >= was.attempts) AND (was.run IS NULL OR p_how = 'dead');
          new := _fail(was, moment, moment, p_reason, dies, p_verb = 'bury');
          cause := CASE WHEN NOT dies THEN 'retried' END;
        ELSIF was.successor IS NOT NULL THEN
          new := _follow(was, moment);
        ELSIF p_reason <> '""' THEN
          new.failures := _failed(was.failures, was.attempt, moment, was.holder, p_reason, NULL);
        END IF;
        IF p_verb = 'retry' AND was.successor IS NULL AND new.state <> DEAD_STATE THEN
          new.state := READY_STATE;
          -- A run without an attempt left is not put off: who claims it plans the next one.
          IF p_untouched AND p_delay > 0 OR NOT p_untouched AND (was.run IS NULL OR new.attempt < new.attempts) THEN
            new.state := DELAYED_STATE;
            new.planned := coalesce(was.planned, was.due);
            new.due := new_due;
            new.expires := was.expires - (new_due - was.due);
          END IF;
        END IF;
    END CASE;
    IF NOT q.closes OR new.state IS NULL OR new.state >= LEASED_STATE THEN
      shut := NULL;
    ELSE
      shut := coalesce(shut, _closed_until(q.id, new."group", moment));
    END IF;
    IF shut IS NOT NULL THEN
      IF remembers THEN
        new.holder := NULL;
        new.since := NULL;
        PERFORM _remember_end(q, new, CANCELLED_END, moment, NULL);
      END IF;
      new := NULL;
      cause := 'cancelled';
      ending := NULL;
    END IF;
    IF (remembers OR was.stopping IS NOT NULL) AND ending IS NOT NULL THEN
      PERFORM _remember_end(q, was, ending, moment, p_actor, named.note);
    END IF;
    IF new.seq IS NULL THEN
      DELETE FROM message WHERE queue = q.id AND id = was.id;
    ELSE
      PERFORM _store(was, new);
    END IF;
    IF p_verb IN ('reschedule', 'postpone', 'edit') AND new.state = DELAYED_STATE THEN
      dues := dues || new.due;
    END IF;
    -- These two move no message: the place of a dead one stays what it was.
    IF p_verb <> 'extend' AND NOT (p_verb = 'edit' AND new.state IS NOT DISTINCT FROM DEAD_STATE) THEN
      moves := _joined(moves, _moved(was, new, cause));
      ends_lease := ends_lease OR was.state = LEASED_STATE;
    END IF;
    IF shut IS NOT NULL THEN
      done := was.state = LEASED_STATE;
      state := CASE WHEN NOT done THEN CLOSED_STATE END;
      until := CASE WHEN NOT done THEN shut END;
      due := NULL; holder := NULL;
    ELSIF new.seq IS NULL THEN
      state := NULL; until := NULL;
      IF p_verb = 'ack' OR p_verb = 'renew' AND (p_how = 'acked' OR was.stopping IS NULL) THEN
        due := NULL; holder := NULL;
      ELSE
        due := was.due; holder := was.holder;
      END IF;
    ELSE
      SELECT * INTO state, due, until, holder FROM _stands(new, moment);
      IF p_verb = 'extend' AND was.stopping IS NOT NULL THEN
        state := STOPPING_STATE;
      END IF;
    END IF;
    RETURN NEXT;
    IF p_sender IS NOT NULL THEN
      outcomes := outcomes || _outcome(number, done, state, due, until, holder, successor);
    END IF;
  END LOOP;
  IF ends_lease AND q.limited IS NOT NULL OR p_verb = 'ack' THEN
    number := 0; done := false; state := NULL; until := NULL; holder := NULL;
    due := CASE WHEN ends_lease THEN _opens_again(q, moment) END;
    RETURN NEXT;
    IF p_sender IS NOT NULL THEN
      outcomes := outcomes || _outcome(number, done, state, due, until, holder, NULL);
    END IF;
  END IF;
  IF cardinality(outcomes) > 0 THEN
    PERFORM _remember(p_sender, p_number, p_place, outcomes);
  END IF;
  PERFORM _count_moves(moves);
  IF cardinality(dues) > 0 THEN
    PERFORM _lower(q.id, moment, dues);
  END IF;
END $$;

-- Delete messages that are held by these tokens, have no successor, do not repeat, and whose workers were not
-- asked to stop; answer the places of their ids.
CREATE FUNCTION bide._ack(p_queue integer, p_moment bigint, p_ids text[], p_tokens bigint[])
RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  acked_places bigint[];
  limits integer[];  -- of each acked message that was leased under limits,
  groups text[];     -- and its group
BEGIN
  WITH held AS MATERIALIZED (  -- `OFFSET 0`: one look-up each
    SELECT DISTINCT ON (w.id COLLATE "C", w.token) m.ctid, w.n
    FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS w(id, token, n), LATERAL (
      SELECT ctid FROM message
      WHERE queue = p_queue AND id = w.id AND token = w.token AND rank > p_moment  -- leased: the others
        AND successor IS NULL AND stopping IS NULL AND run IS NULL                 -- have no token
      OFFSET 0
    ) AS m
    ORDER BY w.id COLLATE "C", w.token, w.n
  ), acked AS (
    DELETE FROM message AS m USING held
    WHERE m.ctid = held.ctid AND m.token = p_tokens[held.n] AND m.rank > p_moment
      AND m.successor IS NULL AND m.stopping IS NULL
    RETURNING held.n, m.limited, m."group"
  )
  SELECT array_agg(n), array_agg(limited) FILTER (WHERE limited IS NOT NULL),
         array_agg("group") FILTER (WHERE limited IS NOT NULL)
  INTO acked_places, limits, groups FROM acked;
  IF acked_places IS NOT NULL THEN
    INSERT INTO tally VALUES (p_queue, 'leased', -1, -cardinality(acked_places)),
                             (p_queue, 'acked', -1, cardinality(acked_places));
  END IF;
  IF limits IS NOT NULL THEN
    INSERT INTO reopened
    SELECT limited, coalesce(name, ''), count(*)
    FROM unnest(limits, groups) AS g(limited, name) GROUP BY 1, 2;
  END IF;
  RETURN coalesce(acked_places, '{}');
END $$;

-- The delayed and ready messages that a rule names, at most `p_limit`; ready ones first.
CREATE FUNCTION bide._unheld(p_queue integer, p_group text, p_after bigint, p_before bigint,
                             p_limit bigint)
RETURNS SETOF bide.message LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY
    (SELECT * FROM message
     WHERE queue = p_queue AND "group" = p_group AND state < LEASED_STATE AND due >= p_after AND due < p_before
     ORDER BY seq LIMIT p_limit)
    UNION ALL
    (SELECT * FROM message
     WHERE p_group IS NULL AND queue = p_queue AND state = READY_STATE AND due >= p_after AND due < p_before
     ORDER BY rank, seq LIMIT p_limit)
    UNION ALL
    (SELECT * FROM message
     WHERE p_group IS NULL AND queue = p_queue AND state = DELAYED_STATE
       AND rank >= p_after * PRIORITIES AND rank < p_before * PRIORITIES
     ORDER BY rank, seq LIMIT p_limit)
    LIMIT p_limit;
END $$;

-- The leased messages that a rule names, but those whose workers were asked to stop; at most `p_limit`.
CREATE FUNCTION bide._running(p_queue integer, p_group text, p_after bigint, p_before bigint,
                              p_limit bigint)
RETURNS SETOF bide.message LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN QUERY
    SELECT * FROM message
    WHERE queue = p_queue AND state = LEASED_STATE AND stopping IS NULL AND due >= p_after AND due < p_before
      AND (p_group IS NULL OR "group" = p_group)
    ORDER BY rank, seq LIMIT p_limit;
END $$;

-- Ask the workers of leased messages that a rule names to stop, at most `p_most`. Answers whose are stopping,
-- how many were cancelled, because their leases were over, and whether more are left. Those that have changed
-- meanwhile are left alone, and those that are being settled.
CREATE FUNCTION bide._stop_all(
  q bide.queue, p_now bigint, p_group text, p_after bigint, p_before bigint, p_actor text, p_most bigint,
  OUT count integer, OUT more boolean, OUT stopping text[]
) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  ids text[] := ARRAY(SELECT id FROM _running(q.id, p_group, p_after, p_before, p_most + 1));
  changed text[] := '{}';  -- ids of messages that the rule does not name any more
  patience integer := SETTLING_WAIT;  -- see `_locked`
  chosen_id text;
  was message;
BEGIN
  more := cardinality(ids) > p_most;
  FOREACH chosen_id IN ARRAY ARRAY(SELECT id FROM unnest(ids[:p_most]) AS id ORDER BY id COLLATE "C") LOOP
    was := _locked(q.id, chosen_id, NULL, patience);
    IF was.state = SETTLING_STATE THEN
      patience := 0;  -- only the first is waited for
    END IF;
    IF (was.state = LEASED_STATE AND was.stopping IS NULL AND was.due >= p_after AND was.due < p_before
        AND (p_group IS NULL OR was."group" = p_group)) IS NOT TRUE THEN
      changed := changed || chosen_id;
    END IF;
  END LOOP;
  ids := ARRAY(SELECT id FROM unnest(ids[:p_most]) WITH ORDINALITY AS i(id, n)
               WHERE id <> ALL (changed) ORDER BY n);
  SELECT count(*) FILTER (WHERE c.done),
         coalesce(array_agg(ids[c.number] ORDER BY c.number) FILTER (WHERE c.state = STOPPING_STATE), '{}')
  INTO count, stopping FROM _change('stop', q.name, p_now, ids, p_actor => p_actor) AS c;
END $$;

-- Delete up to BULK messages and count why. Answers how many, and whether more are left. Each is looked
-- at again when it is locked: it may have been claimed, moved or changed meanwhile. With `p_running` the
-- workers of leased ones are asked to stop, too: `stopping` has their ids.
CREATE FUNCTION bide._delete_where(
  p_cause text, p_queue text, p_now bigint, p_state bigint, p_group text, p_after bigint,
  p_before bigint, p_actor text, p_running boolean,
  OUT count integer, OUT more boolean, OUT stopping text[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  first_due bigint := coalesce(p_after, 0);
  last_due bigint := coalesce(p_before, EVERYTHING);
  moves tally[] := '{}';  -- changes of the counters
  ids text[];
  chosen_id text;
  was message;
  stopped record;  -- what `_stop_all` answers
BEGIN
  CASE p_state
    WHEN DELAYED_STATE THEN first_due := moment + 1;
    WHEN READY_STATE THEN last_due := least(last_due, moment + 1);
    ELSE NULL;
  END CASE;
  SELECT coalesce(array_agg(id ORDER BY id COLLATE "C") FILTER (WHERE n <= BULK), '{}'), count(*) > BULK
  INTO ids, more FROM (
    SELECT id, row_number() OVER () AS n FROM (
      (SELECT id FROM message
       WHERE p_state >= DEAD_STATE AND queue = q.id AND state = p_state AND state >= 0
         AND rank < coalesce(p_before, EVERYTHING) ORDER BY rank, seq LIMIT BEYOND_BULK)
      UNION ALL
      SELECT id FROM _unheld(q.id, p_group, first_due, last_due, BEYOND_BULK) WHERE coalesce(p_state, DELAYED_STATE) < LEASED_STATE
    ) AS candidates
  ) AS numbered;
  -- One more than BULK was looked for, to know whether more are left.
  count := 0;
  FOREACH chosen_id IN ARRAY ids LOOP
    DELETE FROM message WHERE queue = q.id AND id = chosen_id AND CASE
      WHEN p_state >= DEAD_STATE THEN state = p_state AND rank < coalesce(p_before, EVERYTHING)
      ELSE state < LEASED_STATE AND due >= first_due AND due < last_due AND (p_group IS NULL OR "group" = p_group)
    END RETURNING * INTO was;
    CONTINUE WHEN was.seq IS NULL;
    IF was.state < ACKED_STATE AND greatest(q.history, q.result_ttl) > 0 THEN
      PERFORM _remember_end(q, was, CASE p_cause WHEN 'purged' THEN PURGED_END ELSE CANCELLED_END END, moment, p_actor);
    END IF;
    count := count + 1;
    moves := moves || _moved(was, NULL, CASE WHEN was.state < ACKED_STATE THEN p_cause END);
  END LOOP;
  PERFORM _count_moves(moves);
  stopping := '{}';
  IF p_running AND NOT more THEN
    stopped := _stop_all(q, p_now, p_group, first_due, last_due, p_actor, BULK - count);
    count := count + stopped.count;
    more := stopped.more;
    stopping := stopped.stopping;
  END IF;
END $$;

-- Set what is given for a queue, made if it does not exist.
CREATE FUNCTION bide._configure(p_queue text, p_now bigint, p_paused boolean, p_keep bigint,
                                p_actor text DEFAULT NULL, p_pauses bigint DEFAULT 0,
                                p_history bigint DEFAULT NULL, p_result_ttl bigint DEFAULT NULL,
                                p_limits bigint[] DEFAULT NULL, p_until bigint DEFAULT NULL,
                                p_lasting bigint DEFAULT NULL, p_overdue text DEFAULT NULL)
RETURNS TABLE (paused boolean, keep bigint, wakes bigint, history bigint, result_ttl bigint,
               limits bigint[], paused_until bigint, overdue text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  was_paused boolean;
  q queue;
  limiting record;  -- the queue with its new limits, and whether they have changed
BEGIN
  limiting := _limit(_open(p_queue, moment, true), p_limits, moment);
  q := limiting.q;
  IF _may_forget() THEN  -- also ends that `_fold` has not noted
    PERFORM _forget_ends(q, moment);
  END IF;
  was_paused := _is_paused(q, moment);
  IF p_paused THEN
    paused_until := coalesce(moment + p_lasting, p_until);
    p_paused := coalesce(paused_until > moment, true);
    wakes := CASE WHEN p_paused THEN paused_until END;
  END IF;
  IF p_paused AND NOT was_paused THEN
    INSERT INTO pause (queue, since, until, actor) VALUES (q.id, moment, paused_until, p_actor);
    DELETE FROM pause WHERE queue = q.id AND seq NOT IN (
      SELECT seq FROM pause WHERE queue = q.id ORDER BY seq DESC LIMIT p_pauses);
  ELSIF was_paused AND p_paused IS NOT NULL THEN
    UPDATE pause SET until = CASE WHEN p_paused THEN paused_until ELSE moment END
    WHERE seq = (SELECT seq FROM pause WHERE queue = q.id ORDER BY seq DESC LIMIT 1);
  END IF;
  UPDATE queue SET paused = coalesce(p_paused, was_paused), keep = coalesce(p_keep, keep),
    remembers = remembers OR coalesce(p_keep, 0) > 0,
    history = coalesce(p_history, history), result_ttl = coalesce(p_result_ttl, result_ttl),
    overdue = coalesce(p_overdue, overdue),
    ends = ends OR greatest(p_history, p_result_ttl, 0) > 0
  WHERE id = q.id RETURNING paused, keep, history, result_ttl, overdue
  INTO paused, keep, history, result_ttl, overdue;
  IF was_paused AND NOT p_paused OR limiting.changed THEN
    wakes := moment;
  END IF;
  paused_until := CASE WHEN paused THEN _pause_end(q) END;
  limits := _limits(q);
  RETURN NEXT;
END $$;

-- Delete a queue if it is empty. Answers whether that was done.
CREATE FUNCTION bide._delete(p_queue text, p_now bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  q queue;
BEGIN
  PERFORM _check_access(p_queue);
  LOCK TABLE tally IN SHARE ROW EXCLUSIVE MODE;  -- see `_open`
  q := _open(p_queue, _moment(p_now));
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
  DELETE FROM closed WHERE queue = q.id;
  DELETE FROM forwarded WHERE queue = p_queue;
  RETURN true;
END $$;
