-- Closed groups: see bide.engines.rules.closing. What a put stores in a group while that is closed is not
-- seen by the cancel that follows. So a put holds a lock on its groups until its commit, which it shares with
-- other puts, and a command that closes one of them waits for it.
--
-- All groups share GROUP_LOCKS locks, because the server has room for some thousands. Other users of the database
-- cannot know their numbers, which are made with a secret. The number of the lock of a group is written out where
-- it is needed: a function in SQL costs three times as much as the lock.

-- Keep groups from being closed until the commit. Their locks are taken in order.
CREATE FUNCTION bide._keep_open(p_queue text, p_groups text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(lock) FROM (
    SELECT DISTINCT hashtextextended(key, hashtext(p_queue || ' ' || name) & LAST_GROUP_LOCK) AS lock
    FROM secret, unnest(p_groups) AS name WHERE name IS NOT NULL ORDER BY lock) AS locks;
END $$;

-- Until when a group is closed; null: it is open.
CREATE FUNCTION bide._closed_until(p_queue integer, p_group text, p_now bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT until FROM closed WHERE queue = p_queue AND "group" = p_group AND until > p_now);
END $$;

-- Delete the marks of groups that have opened by themselves, at most FORGET.
CREATE FUNCTION bide._forget_closed(q bide.queue, p_now bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  DELETE FROM closed WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM closed WHERE queue = q.id AND until <= p_now
    ORDER BY until LIMIT FORGET FOR UPDATE SKIP LOCKED));
END $$;

-- Close a group of a queue, which is made if it does not exist. A group that is closed stays so until the later of
-- the two times. Returns until when it is closed.
CREATE FUNCTION bide._close_group(p_queue text, p_now bigint, p_group text, p_keep bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q queue;
  closed_until bigint;
BEGIN
  IF session_user <> current_user THEN
    PERFORM _check_access(p_queue);
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended(key, hashtext(p_queue || ' ' || p_group) & LAST_GROUP_LOCK))  -- first, as a put does
  FROM secret;
  q := _open(p_queue, moment, true);
  UPDATE queue SET closes = true WHERE id = q.id AND NOT closes;
  INSERT INTO closed AS c VALUES (q.id, p_group, moment + p_keep)
  ON CONFLICT (queue, "group") DO UPDATE SET until = greatest(c.until, excluded.until)
  RETURNING until INTO closed_until;
  RETURN closed_until;
END $$;

-- Open a group. Answers until when it was closed; null: it was not.
CREATE FUNCTION bide._reopen_group(p_queue text, p_now bigint, p_group text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  closed_until bigint;
BEGIN
  DELETE FROM closed WHERE queue = q.id AND "group" = p_group AND until > moment RETURNING until INTO closed_until;
  RETURN closed_until;
END $$;

-- The first closed groups after one, in the order in which they open.
CREATE FUNCTION bide._closed_groups(p_queue text, p_now bigint, p_after bigint, p_group text, p_limit bigint)
RETURNS TABLE (until bigint, "group" text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _queue(p_queue);
BEGIN
  RETURN QUERY
    SELECT c.until, c."group" FROM closed AS c
    WHERE c.queue = q.id AND c.until > moment AND (c.until, c."group") > (p_after, p_group COLLATE "C")
    ORDER BY c.until, c."group" LIMIT p_limit;
END $$;

-- Cancel messages of closed groups that a claim has found. `p_dues`: their due times, if the counters have to
-- follow.
CREATE FUNCTION bide._shut(q bide.queue, p_places tid[], p_dues bigint[], p_now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF greatest(q.history, q.result_ttl) > 0 THEN
    PERFORM _remember_end(q, m, CANCELLED_END, p_now, NULL) FROM message AS m WHERE m.ctid = ANY (p_places);
  END IF;
  DELETE FROM message WHERE ctid = ANY (p_places);
  INSERT INTO tally
  SELECT q.id, 'cancelled', -1, cardinality(p_places)
  UNION ALL
  SELECT q.id, 'pending', _hour(due), -count(*) FROM unnest(p_dues) AS due GROUP BY _hour(due);
END $$;
