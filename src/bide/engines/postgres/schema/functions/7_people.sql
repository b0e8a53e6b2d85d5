-- For people, triggers and programs in other languages: one message at a time, in the caller's own
-- transaction, so that an order and its time-out are committed together. Answers hold once that has
-- been committed; a delay counts from the call. Arguments may be columns of any collation: what is
-- called with one that says `COLLATE "C"` compares all texts by that. Texts with a backslash begin with E: what
-- it means in others is a setting of the caller's.

-- 1 to MAX_NAME bytes without control characters. In SQL_ASCII a byte counts as a character, and those from
-- U+0080 to U+009F have two.
CREATE FUNCTION bide._check_name(p_what text, p_value text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  control CONSTANT text := CASE getdatabaseencoding()
    WHEN 'SQL_ASCII' THEN E'[\\u0001-\\u001f\\u007f]|\\u00c2[\\u0080-\\u009f]'
    ELSE E'[\\u0001-\\u001f\\u007f-\\u009f]' END;
BEGIN
  IF octet_length(p_value) NOT BETWEEN 1 AND MAX_NAME OR p_value ~ control THEN
    RAISE EXCEPTION '% must have 1 to MAX_NAME bytes and no control characters', p_what
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- Refuse JSON that other programs cannot read, though it is `json` here: halves of pairs of UTF-16, numbers
-- beyond 1.8e308, integers of more than MAX_DIGITS digits, and more than MAX_DEPTH levels: what
-- `check_json` of bide.model.body refuses.
CREATE FUNCTION bide._check_json(p_what text, p_json text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  plain text := p_json;
  why text;
BEGIN
  -- Escapes of halves that are no pair: what is left after escaped backslashes and pairs are taken out.
  IF p_json ~ E'\\\\u[dD][89a-fA-F]' AND regexp_replace(
       replace(p_json, E'\\\\', ''), E'\\\\u[dD][89abAB]..\\\\u[dD][c-fC-F]..', '', 'g') ~ E'\\\\u[dD][89a-fA-F]' THEN
    why := 'is not JSON: invalid utf-16 surrogate pair';
  END IF;
  IF p_json ~ '[0-9]{LONG_NUMBER}|[eE][+]?[0-9]{3}' AND EXISTS (
    SELECT FROM regexp_matches(_outside_strings(p_json), '[0-9]+(?:[.][0-9]+)?(?:[eE][+]?[0-9]+)?', 'g') AS m(n)
    WHERE CASE WHEN n[1] ~ '[.eE]' THEN _exceeds_double(n[1]) ELSE length(n[1]) > MAX_DIGITS END
  ) THEN
    why := 'is not JSON: Number out of range';
  END IF;
  IF length(p_json) - length(translate(p_json, '[{', '')) > MAX_DEPTH THEN
    plain := translate(regexp_replace(_outside_strings(p_json), '[^][{}]+', '', 'g'), '{}', '[]');
    FOR level IN 1 .. MAX_DEPTH LOOP  -- take out the innermost pairs: one level at each turn
      EXIT WHEN plain = '';
      plain := replace(plain, '[]', ' ');
      plain := replace(plain, ' ', '');
    END LOOP;
    IF plain <> '' THEN
      why := 'is nested too deeply: the limit is MAX_DEPTH levels';
    END IF;
  END IF;
  IF why IS NOT NULL THEN
    RAISE EXCEPTION '% %', p_what, why
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

-- JSON without what is in strings.
CREATE FUNCTION bide._outside_strings(p_json text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT regexp_replace(replace(replace(p_json, E'\\\\', ''), E'\\"', ''), '"[^"]*"', '""', 'g')
$$;

-- Whether a number, as text, is too large for a double; one that is too small becomes 0.
CREATE FUNCTION bide._exceeds_double(p_number text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN p_number::double precision IS NULL;
EXCEPTION WHEN numeric_value_out_of_range THEN
  RETURN p_number::numeric > 1;  -- else it is too small, and 0
END $$;

-- Delays count from the beginning of this millisecond: what has none is ready at once.
CREATE FUNCTION bide._due(delay interval, at timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  due timestamptz := coalesce(at, date_trunc('milliseconds', clock_timestamp()) + coalesce(delay, '0'));
BEGIN
  IF at IS NOT NULL AND delay IS NOT NULL THEN
    RAISE EXCEPTION 'give delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF due NOT BETWEEN '1970-01-01Z' AND '2100-01-01Z' THEN
    RAISE EXCEPTION 'a message cannot be due at %: that is before 1970 or after 2099', due
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN ceil(extract(epoch FROM due) * SECOND_MS);
END $$;

-- A new unique id: the microsecond, so that ids of one time are together in the index; the
-- process, so that two that use `setseed` differ; and a random number, for other stores. A UUID takes
-- ten times as long, more where the server was built without OpenSSL: it reads a file for each.
CREATE FUNCTION bide._new_id() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT to_hex((date_part('epoch', clock_timestamp()) * SECOND_US)::bigint) || '-'
         || to_hex(pg_backend_pid()) || '-' || to_hex((random() * RANDOM_IDS)::bigint)
$$;

-- Put a message. Without an id it gets one. `on_conflict`: 'keep' the message of that id that is
-- there, or 'replace' it unless a worker holds it. `latest`: each put of the id delays it, but at most
-- so long after the first; done and leased: it was stored as the successor, and this is its due time.
CREATE OR REPLACE FUNCTION bide.put(
  queue text, body json, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
  id text DEFAULT NULL, priority integer DEFAULT 0, attempts integer DEFAULT DEFAULT_ATTEMPTS,
  expires interval DEFAULT NULL, "group" text DEFAULT NULL, headers json DEFAULT NULL,
  on_conflict text DEFAULT 'keep', latest interval DEFAULT NULL
) RETURNS bide.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_variable
DECLARE
  data CONSTANT bytea := convert_to(body::text, 'UTF8');
  due bigint := _due(delay, at);
  expires_ms CONSTANT bigint := ceil(extract(epoch FROM expires) * SECOND_MS);
  latest_ms CONSTANT bigint := ceil(extract(epoch FROM latest) * SECOND_MS);
  put_at bigint;            -- when `_put_one` stored it; null: that was not possible
  existing_state smallint;  -- of the message that has the id, if `_put` tells of it, and when that
  existing_due bigint;      -- or its successor is due
  result outcome;
BEGIN
  result.id := coalesce(id, _new_id());
  PERFORM _check_queue(queue);
  PERFORM _check_name('id', id);
  PERFORM _check_name('group', "group");
  IF priority NOT BETWEEN 0 AND MAX_PRIORITY OR attempts NOT BETWEEN 1 AND MAX_ATTEMPTS OR expires < '0'
     OR expires_ms NOT BETWEEN 0 AND MAX_DURATION OR on_conflict NOT IN ('keep', 'replace') OR octet_length(data) > MAX_BODY THEN
    RAISE EXCEPTION 'priority is 0 to MAX_PRIORITY, attempts 1 to MAX_ATTEMPTS, expires 0 to MAX_DAYS days, '
      'on_conflict keep or replace, and the body has at most MAX_BODY bytes'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF data IS NULL THEN
    RAISE EXCEPTION 'body is null; the JSON value null is ''null''::json'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM _check_json('body', body::text), _check_json('headers', headers::text);
  IF json_typeof(headers) <> 'object' OR EXISTS (
    SELECT FROM json_each(CASE WHEN json_typeof(headers) = 'object' THEN headers END)
    WHERE json_typeof(value) <> 'string'
  ) THEN
    RAISE EXCEPTION 'headers must be a JSON object of texts'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF latest NOT BETWEEN '0' AND 'MAX_YEARS years' OR latest IS NOT NULL
     AND (id IS NULL OR delay IS NULL OR on_conflict IS DISTINCT FROM 'replace') THEN
    RAISE EXCEPTION 'latest bounds how long puts of one id delay it: it is 0 to MAX_YEARS years, and '
      'needs id, delay and on_conflict => ''replace''' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  result.done := true;
  IF on_conflict IS DISTINCT FROM 'replace' THEN
    put_at := _put_one(queue COLLATE "C", NULL, result.id, true, data, due, 0, coalesce(priority, 0),
                       coalesce(attempts, DEFAULT_ATTEMPTS), expires_ms, "group", headers::text);
  END IF;
  IF put_at IS NULL THEN
    SELECT p.done, p.state, coalesce(p.successor, p.due)
    INTO result.done, existing_state, existing_due
    FROM _put(queue COLLATE "C", NULL, coalesce(on_conflict, 'keep'), false, NULL, ARRAY[result.id], NULL,
      ARRAY[data], ARRAY[due], NULL, ARRAY[priority]::bigint[], ARRAY[attempts]::bigint[], ARRAY[expires_ms],
      ARRAY["group"], ARRAY[headers::text], ARRAY[latest_ms]) AS p WHERE p.number > 0;
    result.done := coalesce(result.done, true);
    due := coalesce(existing_due, due);
  END IF;
  PERFORM _wake_at_commit(queue COLLATE "C", due, NULL) WHERE result.done AND existing_state IS DISTINCT FROM LEASED_STATE;
  result.state := _name(coalesce(existing_state, CASE WHEN due <= _moment(NULL) THEN READY_STATE ELSE DELAYED_STATE END::smallint));
  result.due := to_timestamp(due / SECOND_MS.0);
  RETURN result;
END $$;

-- The name of a state, by its number.
CREATE FUNCTION bide._name(p_state smallint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT ('{delayed,ready,leased,dead,acked,expired,settling,stopping,closed,ending}'::text[])[p_state + 1]
$$;

-- Cancel a message that no worker holds. Done: it will not be delivered. One that repeats, and is held, has the
-- state ending: it repeats no longer.
CREATE OR REPLACE FUNCTION bide.cancel(queue text, id text) RETURNS bide.outcome
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT (id, coalesce(c.done, false), _name(c.state), to_timestamp(c.due / SECOND_MS.0))::outcome
  FROM (SELECT 1) AS one LEFT JOIN _change(
    'cancel', queue COLLATE "C", NULL, ARRAY[id], p_actor => session_user::text) AS c ON true
$$;

-- The same; with `running` also ask the worker of a message that is held to stop. Then its state is stopping:
-- unless the worker still acks it, it is cancelled.
CREATE OR REPLACE FUNCTION bide.cancel(queue text, id text, running boolean) RETURNS bide.outcome
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT (id, coalesce(c.done, false), _name(c.state), to_timestamp(c.due / SECOND_MS.0))::outcome
  FROM (SELECT 1) AS one LEFT JOIN _change(
    CASE WHEN running THEN 'stop' ELSE 'cancel' END, queue COLLATE "C", NULL, ARRAY[id],
    p_actor => session_user::text) AS c ON true
$$;

-- Refuse puts into a group for so long, and cancel what waits in it. Answers how many messages that were.
CREATE OR REPLACE FUNCTION bide.close_group(queue text, "group" text, keep interval DEFAULT '1 day') RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_variable
DECLARE
  cancelled integer := 0;
  part record;
BEGIN
  PERFORM _check_access(queue COLLATE "C"), _check_queue(queue), _check_name('group', "group");
  IF keep <= '0' OR keep > 'MAX_YEARS years' OR "group" IS NULL OR keep IS NULL THEN
    RAISE EXCEPTION 'close_group needs a group, and keep is more than 0 and at most MAX_YEARS years'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  PERFORM _close_group(queue COLLATE "C", NULL, "group" COLLATE "C", ceil(extract(epoch FROM keep) * SECOND_MS)::bigint);
  LOOP
    SELECT * INTO part FROM _delete_where('cancelled', queue COLLATE "C", NULL, NULL, "group" COLLATE "C", NULL, NULL,
                                          session_user::text, false);
    cancelled := cancelled + part.count;
    EXIT WHEN NOT part.more;
  END LOOP;
  RETURN cancelled;
END $$;

-- Open a closed group again. Answers whether it was closed.
CREATE OR REPLACE FUNCTION bide.reopen_group(queue text, "group" text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT _reopen_group(queue COLLATE "C", NULL, "group" COLLATE "C") IS NOT NULL
$$;

-- The closed groups of a queue.
CREATE OR REPLACE FUNCTION bide.closed_groups(queue text) RETURNS TABLE ("group" text, until timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT c."group", to_timestamp(c.until / SECOND_MS.0) FROM _closed_groups(queue COLLATE "C", NULL, 0, '', NULL) AS c
$$;

-- Move a message that no worker holds to another due time.
CREATE OR REPLACE FUNCTION bide.reschedule(queue text, id text, delay interval DEFAULT NULL,
                                at timestamptz DEFAULT NULL) RETURNS bide.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  due CONSTANT bigint := _due(delay, at);
  c record;
BEGIN
  SELECT * INTO c FROM _change('reschedule', queue COLLATE "C", NULL, ARRAY[id], p_at => due);
  PERFORM _wake_at_commit(queue COLLATE "C", due, NULL) WHERE c.done;
  RETURN (id, coalesce(c.done, false), _name(c.state), to_timestamp(c.due / SECOND_MS.0))::outcome;
END $$;

-- Look at a message: no row if there is none. A body that is not JSON is in `bytes`. `successor`: when
-- what a put with `latest` has stored is due, while a worker holds the message.
CREATE OR REPLACE FUNCTION bide.get(queue text, id text)
RETURNS TABLE (state text, due timestamptz, body json, bytes bytea, priority integer,
               attempt integer, attempts integer, "group" text, headers json, failures json,
               holder text, until timestamptz, created timestamptz, successor timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT _name((CASE WHEN f.state = DELAYED_STATE AND f.due <= _moment(NULL) THEN READY_STATE ELSE f.state END)::smallint),
         to_timestamp(f.due / SECOND_MS.0),
         CASE WHEN f.is_json THEN convert_from(f.data, 'UTF8')::json END,
         CASE WHEN NOT f.is_json THEN f.data END,
         f.priority::integer, f.attempt + (f.state = LEASED_STATE)::integer, f.attempts, f."group",
         f.headers::json, f.failures::json, f.holder,
         CASE WHEN f.state >= LEASED_STATE THEN to_timestamp(f.rank / SECOND_MS.0) END,
         to_timestamp(nullif(f.created, 0) / SECOND_MS.0),
         to_timestamp((f.successor::json ->> 'due')::bigint / SECOND_MS.0)
  FROM _find(queue COLLATE "C", ARRAY[id], EVERYTHING, false) AS f
$$;

-- By which rule a message repeats, as JSON; null: it does not, or there is none.
CREATE OR REPLACE FUNCTION bide.rule(queue text, id text) RETURNS text
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT f.rule FROM _find(queue COLLATE "C", ARRAY[id], EVERYTHING, false) AS f
$$;

-- Let a role use the store, by these functions alone: `queues` are patterns as for LIKE.
CREATE OR REPLACE FUNCTION bide.allow(role name, queues text[] DEFAULT '{%}') RETURNS void
LANGUAGE plpgsql SET search_path = bide, pg_temp AS $$
#variable_conflict use_variable
BEGIN
  EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
  EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %I TO %I', current_schema(), role);
  EXECUTE format('REVOKE EXECUTE ON FUNCTION allow FROM %I', role);
  EXECUTE format('GRANT SELECT ON store TO %I', role);
  DELETE FROM access AS a WHERE a.role = allow.role;
  INSERT INTO access VALUES (role, queues);
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA bide FROM PUBLIC;
SELECT bide.allow(a.role, a.queues) FROM bide.access AS a JOIN pg_roles AS r ON r.rolname = a.role;
