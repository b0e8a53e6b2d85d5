-- Commands in the caller's own transaction, of `within=` in Python: one call, one argument and one
-- answer as JSON, so that every driver can do it. What is refused is an answer and no error, because
-- an error would abort the caller's transaction.

-- Which database this is, among all copies of it.
CREATE FUNCTION bide._database() RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT c.system_identifier || '/' || d.oid FROM pg_control_system() AS c, pg_database AS d
  WHERE d.datname = current_database()
$$;

-- The same, looked up once a session: it reads a file.
CREATE FUNCTION bide._here() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(nullif(current_setting('bide.database', true), ''),
                  set_config('bide.database', _database(), false))
$$;

-- The answer to what was refused; null: the caller's transaction has to begin again.
CREATE FUNCTION bide._refused(p_state text, p_why text) RETURNS json LANGUAGE sql STABLE AS $$
  SELECT CASE
    WHEN p_state = '42501' THEN json_build_object('refused', 'access', 'why', p_why)
    WHEN p_state = '40001' AND NOT _sees_all() THEN NULL
    ELSE '{"refused": "busy"}' END
$$;

-- Put one message, as most calls do: the same as `_within`, without the JSON that it reads.
CREATE FUNCTION bide._within_put(
  p_database text, p_now bigint, p_queue text, p_id text, p_is_json boolean, p_data bytea, p_at bigint,
  p_delay bigint, p_priority bigint, p_attempts bigint, p_expires bigint, p_group text,
  p_headers text
) RETURNS json LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  answer json;
  moment bigint;
BEGIN
  IF p_database <> _here() THEN
    RETURN '{"refused": "database"}';
  END IF;
  moment := _put_one(p_queue, p_now, p_id, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts,
                     p_expires, p_group, p_headers);
  answer := '[[{"due":' || moment || '}]]';
  IF moment IS NULL THEN
    SELECT json_build_array(json_agg(p)) INTO answer FROM _put(
      p_queue, p_now, 'keep', false, NULL, ARRAY[p_id], ARRAY[p_is_json], ARRAY[p_data], ARRAY[p_at],
      ARRAY[p_delay], ARRAY[p_priority], ARRAY[p_attempts], ARRAY[p_expires],
      ARRAY[p_group], ARRAY[p_headers]) AS p;
    moment := _moment(p_now);
  END IF;
  PERFORM _wake_at_commit(p_queue, coalesce(p_at, moment + p_delay), p_now);
  RETURN answer;
EXCEPTION WHEN lock_not_available OR insufficient_privilege OR serialization_failure THEN
  answer := _refused(SQLSTATE, SQLERRM);
  IF answer IS NULL THEN
    RAISE;
  END IF;
  RETURN answer;
END $$;

-- Ack, renew, retry or bury one message by its lease. Until the caller's commit it stays locked, so that no lapse,
-- cancel or extend can come between.
CREATE FUNCTION bide._within_settle(
  p_database text, p_now bigint, p_verb text, p_queue text, p_id text, p_token bigint, p_delay bigint,
  p_reason text, p_result text, p_next bigint DEFAULT NULL, p_run text DEFAULT NULL,
  p_how text DEFAULT 'acked'
) RETURNS json LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp
SET lock_timeout = '250ms' AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q queue;
  answer json;
  wake bigint;
BEGIN
  IF p_database <> _here() THEN
    RETURN '{"refused": "database"}';
  END IF;
  q := _open(p_queue, moment);
  IF p_verb = 'ack' AND q.keep = 0 AND q.history = 0 AND q.result_ttl = 0 AND q.limited IS NULL THEN
    DELETE FROM message  -- as `_ack` does, which takes many
    WHERE queue = q.id AND id = p_id AND token = p_token AND rank > moment AND successor IS NULL
      AND stopping IS NULL AND run IS NULL;
    IF FOUND THEN
      INSERT INTO tally VALUES (q.id, 'leased', -1, -1), (q.id, 'acked', -1, 1);
      RETURN '[[]]';
    END IF;
  END IF;
  SELECT json_agg(c), min(c.due) FILTER (WHERE c.number = 0 OR c.state IN (DELAYED_STATE, READY_STATE)) INTO answer, wake
  FROM _change(p_verb, p_queue, p_now, ARRAY[p_id], ARRAY[p_token], p_delay => p_delay,
               p_reason => p_reason,
               p_notes => CASE WHEN p_result IS NOT NULL THEN ARRAY[p_result] END,
               p_next => ARRAY[p_next], p_runs => ARRAY[p_run], p_how => p_how) AS c;
  PERFORM _wake_at_commit(p_queue, wake, p_now);
  RETURN json_build_array(coalesce(answer, '[]'));
EXCEPTION WHEN lock_not_available OR insufficient_privilege OR serialization_failure THEN
  answer := _refused(SQLSTATE, SQLERRM);
  IF answer IS NULL THEN
    RAISE;
  END IF;
  RETURN answer;
END $$;

-- Carry out commands. Answers a list with the rows of each, or an object that says what was refused.
CREATE FUNCTION bide._within(p_asked json) RETURNS json
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  asked CONSTANT _asked_all := json_populate_record(NULL::_asked_all, p_asked);
  answers json[] := '{}';
  rows json;
  wake bigint;
  c _asked;
BEGIN
  IF asked.database <> _here() THEN
    RETURN '{"refused": "database"}';
  END IF;
  FOREACH c IN ARRAY asked.commands LOOP
    rows := NULL;
    CASE
      WHEN c.verb IN ('keep', 'replace') THEN
        SELECT json_agg(p) INTO rows FROM _put(
          c.queue, asked.now, c.verb, false, NULL, c.ids, c.is_json, c.data, c.at, c.delay, c.priority,
          c.attempts, c.expires, c.groups, c.headers, c.latest, p_rule => c.rules, p_run => c.runs) AS p;
        wake := CASE WHEN c.latest IS NULL
                     THEN least(c.new_due, _moment(asked.now) + c.new_delay) ELSE 0 END;
      WHEN c.verb IN ('cancel', 'stop', 'reschedule') THEN
        SELECT json_agg(a), min(a.due) FILTER (WHERE a.done AND c.verb = 'reschedule') INTO rows, wake
        FROM _change(c.verb, c.queue, asked.now, c.ids, p_at => c.new_due, p_delay => c.new_delay,
                     p_if_due => c.if_due, p_actor => c.actor) AS a;
      WHEN c.verb IN ('cancel_where', 'stop_where') THEN
        SELECT json_agg(a), NULL INTO rows, wake
        FROM _delete_where('cancelled', c.queue, asked.now, NULL, c.of_group, c.after, c.before,
                           c.actor, c.verb = 'stop_where') AS a;
      WHEN c.verb = 'close_group' THEN
        rows := json_build_array(json_build_object(
          'until', _close_group(c.queue, asked.now, c.of_group, c.keep)));
        wake := NULL;
      WHEN c.verb = 'reopen_group' THEN
        rows := json_build_array(json_build_object('until', _reopen_group(c.queue, asked.now, c.of_group)));
        wake := NULL;
      ELSE  -- configure: seldom a change, and one locks the queue until the commit
        wake := NULL;
        PERFORM _configure(c.queue, asked.now, NULL, c.keep, p_history => c.history,
                           p_result_ttl => c.result_ttl, p_limits => c.limits, p_overdue => c.overdue)
        FROM _queue(c.queue) AS q
        WHERE q.keep IS DISTINCT FROM coalesce(c.keep, q.keep)
          OR q.history IS DISTINCT FROM coalesce(c.history, q.history)
          OR q.result_ttl IS DISTINCT FROM coalesce(c.result_ttl, q.result_ttl)
          OR q.overdue IS DISTINCT FROM coalesce(c.overdue, q.overdue)
          OR _limits(q, c.limits) <> _limits(q);
    END CASE;
    PERFORM _wake_at_commit(c.queue, wake, asked.now);
    answers := answers || coalesce(rows, '[]');
  END LOOP;
  RETURN to_json(answers);
EXCEPTION WHEN lock_not_available OR insufficient_privilege OR serialization_failure THEN
  rows := _refused(SQLSTATE, SQLERRM);
  IF rows IS NULL THEN
    RAISE;
  END IF;
  RETURN rows;
END $$;
