-- The lines of limited queues, and their heads: see bide.engines.limiter. Each ready message is in the line
-- of its group, by rank: that is the index `message_line`.
--
-- Claims of one limited queue go one after the other, by a lock. Nothing else waits for it: what ends a
-- lease, or changes a message in line, names its group in `reopened`, and the next claim gives the group the
-- head that it is to have.

-- Apply the rows of `reopened` to the limits and their groups.
CREATE FUNCTION bide._reopen(l bide.limited, p_us bigint) RETURNS bide.limited
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  total record;  -- the groups, how many more leases each has (fewer: below 0), and how many have ended
BEGIN
  IF NOT EXISTS (SELECT FROM reopened WHERE limited = l.id) THEN
    RETURN l;
  END IF;
  WITH noted AS (
    DELETE FROM reopened WHERE limited = l.id RETURNING name, ended
  ), named AS (
    SELECT name, sum(ended)::bigint AS ended FROM noted GROUP BY name
  )
  SELECT array_agg(name) AS names, array_agg(-ended) AS more, sum(ended) AS ended INTO total FROM named;
  PERFORM _stand(l, total.names, total.more, p_us);
  l.running := l.running - total.ended;
  RETURN l;
END $$;

-- Let heads compete whose rate allows it again, and forget groups that are idle.
CREATE FUNCTION bide._wake_groups(l bide.limited, p_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  names text[];
BEGIN
  DELETE FROM limited_group WHERE limited = l.id AND name = ANY (ARRAY(
    SELECT name FROM limited_group
    WHERE limited = l.id AND place = IDLE_GROUP AND place > HEAD_COMPETES
      AND last <= CASE WHEN l.group_rate > 0 THEN p_us - CREDIT - l.group_rate ELSE EVERYTHING END
    ORDER BY last, name LIMIT PROMOTE));
  names := ARRAY(
    SELECT name FROM limited_group
    WHERE limited = l.id AND place = HEAD_WAITS AND place > HEAD_COMPETES AND last <= p_us - l.group_rate
    ORDER BY last, name LIMIT PROMOTE);
  PERFORM _stand(l, names, NULL, p_us) WHERE cardinality(names) > 0;
END $$;

-- Where a group is to be: see the table `limited_group`.
CREATE FUNCTION bide._place(l bide.limited, p_name text, p_running bigint, p_last bigint,
                            p_has_line boolean, p_us bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE AS $$
  SELECT (CASE WHEN NOT p_has_line THEN CASE WHEN p_running > 0 THEN NO_HEAD ELSE IDLE_GROUP END
               WHEN _is_full(l, p_name, p_running) THEN NO_HEAD
               WHEN _opens_for(l, p_name, p_last) > p_us THEN HEAD_WAITS
               ELSE HEAD_COMPETES END)::smallint
$$;

-- Give groups the heads that they are to have. `p_more`: how many more leases each has; null: none.
CREATE FUNCTION bide._stand(l bide.limited, p_names text[], p_more bigint[], p_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO limited_group AS g (limited, name, running, tag, place, rank, seq)
  SELECT l.id, n.name, coalesce(n.more, 0), l.tag + 1,
         _place(l, n.name, coalesce(n.more, 0), 0, first.seq IS NOT NULL, p_us), first.rank, first.seq
  FROM unnest(p_names, p_more) AS n(name, more) LEFT JOIN LATERAL (
    SELECT rank, seq FROM message
    WHERE limited = l.id AND state = READY_STATE AND coalesce("group", '') = n.name ORDER BY rank, seq LIMIT 1
  ) AS first ON true
  ON CONFLICT (limited, name) DO UPDATE SET
    running = g.running + excluded.running, rank = excluded.rank, seq = excluded.seq,
    place = _place(l, g.name, g.running + excluded.running, g.last, excluded.seq IS NOT NULL, p_us)
  WHERE excluded.running <> 0 OR (g.place, g.rank, g.seq) IS DISTINCT FROM (
    _place(l, g.name, g.running, g.last, excluded.seq IS NOT NULL, p_us), excluded.rank, excluded.seq);
END $$;

-- Put messages that are ready, or those that are due, into lines. `places` are locked.
CREATE FUNCTION bide._into_lines(l bide.limited, p_places tid[], p_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  names text[];
BEGIN
  WITH lined AS (
    UPDATE message SET state = READY_STATE, rank = _rank(READY_STATE, due, priority), limited = l.id
    WHERE ctid = ANY (p_places) RETURNING coalesce("group", '') AS name
  )
  SELECT array_agg(DISTINCT name) INTO names FROM lined;
  PERFORM _stand(l, names, NULL, p_us);
END $$;

-- Take in what was leased and ready before the limits: all leases count from now on, and some 1,000
-- messages get into lines. `p_more`: whether there are more.
--
-- A transaction that began before the limits may still make messages ready as if there were none; those
-- that a user's transaction has locked have to wait, too. So the messages are gone through again until
-- a round began after the end of all such transactions: those that began before `horizon`.
CREATE FUNCTION bide._line_up(q bide.queue, INOUT l bide.limited, p_us bigint, OUT p_more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  seen record;      -- ready messages behind `lined`: places of those not in line, the number of all, the last
  places tid[];     -- of those not in line that no other transaction has locked
  names text[];     -- of groups with leases that were not counted yet,
  counts bigint[];  -- and how many those are
BEGIN
  WITH leased AS (
    SELECT ctid FROM message
    WHERE queue = q.id AND state = LEASED_STATE AND state >= 0 AND limited IS DISTINCT FROM l.id
    ORDER BY rank, seq FOR UPDATE SKIP LOCKED
  ), counted AS (
    UPDATE message SET limited = l.id WHERE ctid = ANY (ARRAY(SELECT ctid FROM leased))
    RETURNING coalesce("group", '') AS name
  ), named AS (
    SELECT name, count(*) AS n FROM counted GROUP BY name
  )
  SELECT l.running + coalesce(sum(n), 0), array_agg(name), array_agg(n) INTO l.running, names, counts FROM named;
  PERFORM _stand(l, names, counts, p_us);
  IF l.lined = '{-1,-1}' THEN  -- a new round begins
    l.horizon := coalesce(l.horizon, pg_current_xact_id()::text::bigint);
    l.settled := pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= l.horizon;
  END IF;
  SELECT array_agg(s.ctid) FILTER (WHERE s.limited IS DISTINCT FROM l.id) AS places, count(*) AS n,
         max(ARRAY[s.rank, s.seq]) AS last
  INTO seen FROM (
    SELECT ctid, limited, rank, seq FROM message
    WHERE queue = q.id AND state = READY_STATE AND state >= 0 AND (rank, seq) > (l.lined[1], l.lined[2])
    ORDER BY rank, seq LIMIT PROMOTE
  ) AS s;
  places := ARRAY(
    SELECT ctid FROM message WHERE ctid = ANY (seen.places) AND state = READY_STATE FOR UPDATE SKIP LOCKED);
  PERFORM _into_lines(l, places, p_us);
  IF cardinality(places) < cardinality(seen.places) OR EXISTS (
    SELECT FROM message
    WHERE queue = q.id AND state = LEASED_STATE AND state >= 0 AND limited IS DISTINCT FROM l.id
  ) THEN
    l.horizon := pg_current_xact_id()::text::bigint;
    l.settled := false;
  END IF;
  p_more := seen.n = PROMOTE;
  l.lined := CASE WHEN p_more THEN seen.last WHEN NOT l.settled THEN '{-1,-1}' END;
END $$;
