-- Commands in the caller's own transaction, of `within=` in Python: one call, one argument and one
-- answer as JSON, so that every driver can do it. What is refused is an answer and no error, because
-- an error would abort the caller's transaction.

-- Which database this is, among all copies of it.
CREATE FUNCTION bide._database() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT c.system_identifier || '/' || d.oid FROM pg_control_system() AS c, pg_database AS d
  WHERE d.datname = current_database()
$$;

-- Carry out commands. Answers a list with the rows of each, or an object that says what was refused.
CREATE FUNCTION bide._within(p_asked json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  asked CONSTANT _asked_all := json_populate_record(NULL::_asked_all, p_asked);
  here text := current_setting('bide.database', true);
  answers json[] := '{}';
  rows json;
  wake bigint;
  one record;
  c _asked;
BEGIN
  IF coalesce(here, '') = '' THEN  -- once a session: it reads a file
    here := set_config('bide.database', _database(), false);
  END IF;
  IF asked.database <> here THEN
    RETURN '{"refused": "database"}';
  END IF;
  FOREACH c IN ARRAY asked.commands LOOP
    rows := NULL;
    wake := NULL;
    CASE c.verb
      WHEN 'put' THEN
        IF cardinality(c.ids) = 1 THEN
          one := _put_one(
            c.queue, asked.now, c.ids[1], c.is_json[1], c.data[1], c.at[1], coalesce(c.delay[1], 0),
            coalesce(c.priority[1], 0)::integer, coalesce(c.attempts[1], 10)::integer,
            c.expires[1], c.groups[1], c.headers[1]);
          rows := CASE WHEN one.due IS NOT NULL THEN json_build_array(to_json(one)) END;
        END IF;
        IF rows IS NULL THEN
          SELECT json_agg(p) INTO rows FROM _put(
            c.queue, asked.now, c.ids, c.is_json, c.data, c.at, c.delay, c.priority, c.attempts,
            c.expires, c.groups, c.headers, NULL, NULL, NULL, NULL) AS p;
        END IF;
      WHEN 'replace' THEN
        SELECT json_agg(p) INTO rows FROM _replace(
          c.queue, asked.now, c.ids, c.is_json, c.data, c.at, c.delay, c.priority, c.attempts,
          c.expires, c.groups, c.headers, NULL, NULL, NULL, NULL, c.latest, false, NULL) AS p;
      WHEN 'cancel' THEN
        SELECT json_agg(a) INTO rows
        FROM _change('cancel', c.queue, asked.now, c.ids, p_if_due => c.if_due,
                     p_actor => c.actor) AS a;
      WHEN 'reschedule' THEN
        SELECT json_agg(a), min(a.due) FILTER (WHERE a.done) INTO rows, wake
        FROM _change('reschedule', c.queue, asked.now, c.ids, p_at => c.new_due,
                     p_delay => c.new_delay, p_if_due => c.if_due) AS a;
      WHEN 'cancel_where' THEN
        SELECT json_agg(a) INTO rows
        FROM _delete_where('cancelled', c.queue, asked.now, NULL, c.of_group, c.after, c.before,
                           c.actor) AS a;
      WHEN 'keep' THEN  -- seldom a change, and one locks the queue until the commit
        PERFORM _configure(c.queue, asked.now, NULL, c.keep, p_history => c.history,
                           p_result_ttl => c.result_ttl, p_limits => c.limits)
        FROM _queue(c.queue) AS q
        WHERE q.keep IS DISTINCT FROM coalesce(c.keep, q.keep)
          OR q.history IS DISTINCT FROM coalesce(c.history, q.history)
          OR q.result_ttl IS DISTINCT FROM coalesce(c.result_ttl, q.result_ttl)
          OR _limits(q, c.limits) <> _limits(q);
    END CASE;
    IF c.verb IN ('put', 'replace') THEN
      wake := CASE WHEN c.latest IS NULL THEN least(c.new_due, _moment(asked.now) + c.new_delay)
                   ELSE _moment(asked.now) END;
    END IF;
    IF wake < _moment(asked.now) + 2000 THEN  -- who waits looks once a second
      PERFORM _wake_at_commit(c.queue, wake);
    END IF;
    answers := answers || coalesce(rows, '[]');
  END LOOP;
  RETURN to_json(answers);
EXCEPTION
  WHEN lock_not_available THEN
    RETURN json_build_object('refused', 'busy');
  WHEN insufficient_privilege THEN
    RETURN json_build_object('refused', 'access', 'why', SQLERRM);
  WHEN serialization_failure THEN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE;  -- the caller's transaction has to begin again
    END IF;
    RETURN json_build_object('refused', 'busy');
END $$;
