-- The limits of a queue: what they allow, how they are set, explained and checked.

-- The limits of a queue, locked until the transaction ends. The timeout is longer than that of messages:
-- a claim waits for other claims only, never for a user's transaction.
CREATE FUNCTION bide._lock_limits(p_limited integer) RETURNS bide.limited
LANGUAGE plpgsql VOLATILE SET lock_timeout = '20s' AS $$
DECLARE
  locked limited;
BEGIN
  SELECT * INTO locked FROM limited WHERE id = p_limited FOR UPDATE;
  IF locked.id IS NULL THEN
    RAISE EXCEPTION 'the limits of a queue were taken away while it was claimed from'
      USING ERRCODE = 'serialization_failure';
  END IF;
  RETURN locked;
END $$;

-- Lock the limits of several queues that one transaction claims from, in the same order as others do,
-- and after the messages that it names: else two would wait for each other.
CREATE FUNCTION bide._lock_turns(p_queues text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  PERFORM _check_access(name) FROM unnest(p_queues) AS name;
  PERFORM _lock_limits(limited) FROM (
    SELECT limited FROM queue WHERE name = ANY (p_queues) AND limited IS NOT NULL ORDER BY limited
  ) AS q;
END $$;

-- Store limits that are locked, with what they depend on.
CREATE FUNCTION bide._save_limits(l bide.limited) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE limited SET "limit" = l."limit", rate = l.rate, group_limit = l.group_limit,
    group_rate = l.group_rate, tag = l.tag, running = l.running, last = l.last,
    lined = l.lined, horizon = l.horizon, settled = l.settled
  WHERE id = l.id;
END $$;

-- Whether a group has messages in line.
CREATE FUNCTION bide._has_line(p_limited integer, p_name text) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT seq FROM message
    WHERE limited = p_limited AND state = READY_STATE AND coalesce("group", '') = p_name
    ORDER BY rank, seq LIMIT 1
  ) IS NOT NULL;
END $$;

-- From when the rate of a group allows a message, in microseconds; 0: at any time.
CREATE FUNCTION bide._opens_for(l bide.limited, p_name text, p_last bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_name <> '' AND l.group_rate > 0 THEN p_last + l.group_rate ELSE 0 END
$$;

-- Whether a group has as many leased messages as it may have.
CREATE FUNCTION bide._is_full(l bide.limited, p_name text, p_running bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT p_name <> '' AND l.group_limit > 0 AND p_running >= l.group_limit
$$;

-- How many messages a rate allows at once, which the last one left at `p_last`; up to 10 ms count that
-- were not used.
CREATE FUNCTION bide._allowed(p_last bigint, p_rate bigint, p_us bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_rate = 0 THEN EVERYTHING WHEN p_last + p_rate > p_us THEN 0
              ELSE (p_us - greatest(p_last + p_rate, p_us - CREDIT)) / p_rate + 1 END
$$;

-- When the last of some messages counts as served that are served now.
CREATE FUNCTION bide._served(p_last bigint, p_rate bigint, p_us bigint, p_count bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT greatest(p_last + p_rate, p_us - CREDIT) + (p_count - 1) * p_rate
$$;

-- Name the group of a message that was leased or in line, and is changed or gone, for the next claim; and the
-- group in whose line it is now.
CREATE FUNCTION bide._note_group(p_was bide.message, p_is bide.message) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO reopened VALUES (p_was.limited, coalesce(p_was."group", ''), (p_was.state = LEASED_STATE)::integer);
  IF p_is.state = READY_STATE AND p_is."group" IS DISTINCT FROM p_was."group" THEN
    INSERT INTO reopened VALUES (p_was.limited, coalesce(p_is."group", ''), 0);
  END IF;
END $$;

-- The limits of a queue, in the order of LIMITS of bide.model.times, with those that `p_given` changes.
CREATE FUNCTION bide._limits(q bide.queue, p_given bigint[] DEFAULT NULL) RETURNS bigint[]
LANGUAGE sql STABLE AS $$
  SELECT ARRAY[coalesce(p_given[1], l."limit", 0), coalesce(p_given[2], l.rate, 0),
               coalesce(p_given[3], l.group_limit, 0), coalesce(p_given[4], l.group_rate, 0)]
  FROM (SELECT 1) AS one LEFT JOIN limited AS l ON l.id = q.limited
$$;

-- Delete limits with their groups: the queue is not limited any more.
CREATE FUNCTION bide._drop_limits(p_limited integer) RETURNS void LANGUAGE sql VOLATILE AS $$
  DELETE FROM limited WHERE id = p_limited;
  DELETE FROM limited_group WHERE limited = p_limited;
  DELETE FROM reopened WHERE limited = p_limited;
$$;

-- Change limits of a queue, which is locked from now on.
CREATE FUNCTION bide._limit(INOUT q bide.queue, p_given bigint[], p_now bigint, OUT changed boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  was CONSTANT integer := q.limited;  -- the id of the limits before; null: there were none
  us CONSTANT bigint := p_now * MICROSECONDS;
  wanted bigint[];  -- all limits as they are to be; 0: none
  old limited;
  l limited;
  lining record;  -- what `_line_up` answers
BEGIN
  IF was IS NOT NULL AND p_given IS NOT NULL THEN  -- as claims do: the limits before the queue
    old := _lock_limits(was);
  END IF;
  SELECT * INTO q FROM queue WHERE id = q.id FOR NO KEY UPDATE;
  wanted := _limits(q, p_given);
  changed := wanted <> _limits(q);
  IF NOT changed THEN
    RETURN;
  END IF;
  IF q.limited IS DISTINCT FROM was THEN
    RAISE EXCEPTION 'the limits of a queue were changed by two at a time'
      USING ERRCODE = 'serialization_failure';
  END IF;
  IF wanted = '{0,0,0,0}' THEN
    PERFORM _drop_limits(was);
    UPDATE queue SET limited = NULL WHERE id = q.id RETURNING * INTO q;
    RETURN;
  END IF;
  IF was IS NULL THEN
    INSERT INTO limited (queue, "limit", rate, group_limit, group_rate)
    VALUES (q.id, wanted[1], wanted[2], wanted[3], wanted[4]) RETURNING * INTO l;
    UPDATE queue SET limited = l.id WHERE id = q.id RETURNING * INTO q;
    lining := _line_up(q, l, us);
    l := lining.l;
    l.lined := '{-1,-1}';  -- those who do not know of the limits yet may still be at work
    l.horizon := NULL;
  ELSE
    l := _reopen(old, us);
    l."limit" := wanted[1]; l.rate := wanted[2]; l.group_limit := wanted[3]; l.group_rate := wanted[4];
    IF (l.group_limit, l.group_rate) <> (old.group_limit, old.group_rate) THEN
      PERFORM _stand(l, ARRAY(SELECT name FROM limited_group WHERE limited = was), NULL, us);
    END IF;
  END IF;
  PERFORM _save_limits(l);
END $$;

-- Which limit holds a ready message back, as JSON of `Limited`; null: none.
CREATE FUNCTION bide._limiting(q bide.queue, m bide.message, p_us bigint) RETURNS json
LANGUAGE plpgsql STABLE AS $$
DECLARE
  l limited;
  group_name CONSTANT text := coalesce(m."group", '');
  running bigint;
  last bigint;
  opens bigint;
  group_opens bigint;
BEGIN
  SELECT * INTO l FROM limited WHERE id = q.limited;
  SELECT g.running, g.last INTO running, last FROM limited_group AS g
  WHERE g.limited = l.id AND g.name = group_name;
  SELECT l.running - coalesce(sum(e.ended), 0),
         coalesce(running, 0) - coalesce(sum(e.ended) FILTER (WHERE e.name = group_name), 0)
  INTO l.running, running FROM reopened AS e WHERE e.limited = l.id;
  opens := CASE WHEN l.rate > 0 THEN l.last + l.rate ELSE 0 END;
  group_opens := _opens_for(l, group_name, coalesce(last, 0));
  RETURN CASE
    WHEN l."limit" > 0 AND l.running >= l."limit" THEN
      json_build_object('by', 'limit', 'value', l."limit", 'running', l.running, 'until', NULL)
    WHEN _is_full(l, group_name, running) THEN
      json_build_object('by', 'group_limit', 'value', l.group_limit, 'running', running, 'until', NULL)
    WHEN opens > greatest(p_us, group_opens) THEN
      json_build_object('by', 'rate', 'value', l.rate, 'running', l.running, 'until', (opens + UP_TO_MS) / MICROSECONDS)
    WHEN group_opens > p_us THEN
      json_build_object('by', 'group_rate', 'value', l.group_rate, 'running', running, 'until', (group_opens + UP_TO_MS) / MICROSECONDS)
  END;
END $$;

-- How many groups of a limited queue have other leases than is counted, or a line and no
-- head; how many leases are counted wrong; and how many messages no limit knows of. Each of these
-- reads all groups once, however many there are. Without its limits, nothing of a queue can be served.
CREATE FUNCTION bide._limit_strays(q bide.queue) RETURNS bigint LANGUAGE sql STABLE AS $$
  WITH in_groups AS (
    SELECT coalesce("group", '') AS name, state, limited IS NOT DISTINCT FROM q.limited AS known,
           count(*) AS n
    FROM message WHERE queue = q.id AND state IN (READY_STATE, LEASED_STATE) GROUP BY 1, 2, 3
  ), leases AS (
    SELECT name, -n AS n FROM in_groups WHERE state = LEASED_STATE AND known
    UNION ALL
    SELECT name, -ended FROM reopened WHERE limited = q.limited
  )
  SELECT coalesce((
    -- Groups with other leases than counted; groups with a line and no head; leases that are counted wrong;
    -- and messages that no limit knows of, once all are in line.
    SELECT (SELECT count(*) FROM (
              SELECT FROM (SELECT name, running AS n FROM limited_group WHERE limited = l.id
                           UNION ALL SELECT * FROM leases) AS counted
              GROUP BY name HAVING sum(n) <> 0) AS g)
         + (SELECT count(*) FROM in_groups LEFT JOIN limited_group AS g ON g.limited = l.id AND g.name = in_groups.name
            WHERE state = READY_STATE AND known AND (g.place IN (HEAD_COMPETES, HEAD_WAITS) OR _is_full(l, g.name, g.running)) IS NOT TRUE
              AND in_groups.name NOT IN (SELECT name FROM reopened WHERE limited = l.id))
         + abs(l.running + (SELECT coalesce(sum(n), 0) FROM leases))
         + (SELECT coalesce(sum(n), 0) FROM in_groups WHERE NOT known AND l.lined IS NULL)
    FROM limited AS l WHERE l.id = q.limited
  ), 1)::bigint
$$;
