-- Claims of limited queues. Each ready message is in the line of its group, by rank: that is the
-- index `message_line`. Groups take turns by the number `turn`: the one that is served gets the largest,
-- and those whose lines were empty enter before it, one behind the other. See bide.model.rank.
--
-- Claims of one limited queue go one after the other, by a lock. Nothing else waits for it: what ends a
-- lease, or puts a message into an empty line, adds a row to `lease_end`, which the next claim takes
-- into account. A message that leaves a line leaves the index, and that is all.

-- Apply the rows of `lease_end` to the limits and their groups.
CREATE FUNCTION bide._fold_limits(l bide.limited, p_us bigint) RETURNS bide.limited
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  total record;
BEGIN
  IF NOT EXISTS (SELECT FROM lease_end WHERE limited = l.id) THEN
    RETURN l;
  END IF;
  WITH ends AS (
    DELETE FROM lease_end WHERE limited = l.id RETURNING seq, name, ended, entered, moment
  ), numbered AS (
    SELECT g.seq, g.name, g.ended, g.entered, g.moment, t.running,
           sum(g.ended) OVER (ORDER BY g.moment, g.seq) AS before,
           sum(g.ended) OVER (PARTITION BY g.name ORDER BY g.moment, g.seq) AS of_group
    FROM ends AS g LEFT JOIN turn AS t ON t.limited = l.id AND t.name = g.name
  ), groups AS (
    SELECT name, sum(ended)::bigint AS ended,
           CASE WHEN bool_or(entered) THEN rank() OVER (
             ORDER BY max(ARRAY[moment, seq]) FILTER (WHERE entered) NULLS LAST) END AS nth,
           coalesce(min(moment) FILTER (
             WHERE _is_full(l, name, running) AND of_group > running - l.group_limit), 0) AS freed
    FROM numbered GROUP BY name
  ), changed AS (
    INSERT INTO turn AS t (limited, name, standing, turn, running, freed)
    SELECT l.id, name, CASE WHEN _has_line(l.id, name) THEN 1 ELSE 2 END, l.turn + coalesce(nth, 0),
           -ended, freed
    FROM groups
    ON CONFLICT (limited, name) DO UPDATE SET
      turn = CASE WHEN excluded.turn > l.turn THEN excluded.turn ELSE t.turn END,
      running = t.running + excluded.running, freed = greatest(t.freed, excluded.freed),
      standing = _standing(l, t.name, t.running + excluded.running, t.last, excluded.standing = 1,
                           p_us)
  )
  SELECT coalesce(sum(ended), 0) AS ended, (SELECT count(nth) FROM groups) AS entered,
         min(moment) FILTER (WHERE l."limit" > 0 AND l.running >= l."limit"
                             AND before > l.running - l."limit") AS freed
  INTO total FROM numbered;
  l.running := l.running - total.ended;
  l.freed := greatest(l.freed, total.freed);
  l.turn := l.turn + total.entered;
  RETURN l;
END $$;

-- Let groups take turns whose rate allows it again, and forget those that are idle.
CREATE FUNCTION bide._wake_groups(l bide.limited, p_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  names CONSTANT text[] := ARRAY(
    SELECT name FROM turn WHERE limited = l.id AND standing = 2 AND last <= p_us - l.group_rate
    ORDER BY last, name LIMIT PROMOTE);
BEGIN
  IF cardinality(names) > 0 THEN
    DELETE FROM turn WHERE limited = l.id AND name = ANY (names) AND running = 0
      AND NOT _has_line(l.id, name) AND _opens_for(l, name, last) + CREDIT <= p_us;
    PERFORM _stand(l, names, p_us);
  END IF;
END $$;

-- The `standing` that a group is to have: see `turn`. Statements that change a group anyway change it, too:
-- each change leaves a deleted row, which the next claims read while an old snapshot keeps it.
CREATE FUNCTION bide._standing(l bide.limited, p_name text, p_running bigint, p_last bigint,
                               p_has_line boolean, p_us bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE AS $$
  SELECT (CASE WHEN NOT p_has_line THEN CASE WHEN p_running > 0 THEN 0 ELSE 2 END
               WHEN _is_full(l, p_name, p_running) THEN 0
               WHEN _opens_for(l, p_name, p_last) > p_us THEN 2
               ELSE 1 END)::smallint
$$;

-- Give groups the `standing` that they are to have. Answers whether one has changed.
CREATE FUNCTION bide._stand(l bide.limited, p_names text[], p_us bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE turn AS t SET standing = s.standing FROM (
    SELECT name, _standing(l, name, running, last, _has_line(l.id, name), p_us) AS standing
    FROM turn WHERE limited = l.id AND name = ANY (p_names)
  ) AS s WHERE t.limited = l.id AND t.name = s.name AND t.standing <> s.standing;
  RETURN FOUND;
END $$;

-- Expire the first messages of a line that are late, at most `p_limit`. Answers how many.
CREATE FUNCTION bide._expire_heads(q bide.queue, l bide.limited, p_name text, p_now bigint,
                                   p_limit integer) RETURNS integer
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  late tid[] := '{}';
  dues bigint[] := '{}';
  head record;
BEGIN
  FOR head IN
    SELECT ctid, due, expires FROM message
    WHERE limited = l.id AND state = 1 AND coalesce("group", '') = p_name
    ORDER BY rank, seq LIMIT p_limit FOR UPDATE SKIP LOCKED
  LOOP
    EXIT WHEN coalesce(p_now <= head.due + head.expires, true);
    late := late || head.ctid;
    dues := dues || head.due;
  END LOOP;
  PERFORM _expire(q, late, dues, p_now);
  RETURN cardinality(late);
END $$;

-- Put messages that are ready, or those that are due, into lines. `places` are locked. Groups whose lines
-- were empty enter in the order of their messages; one that was idle begins again.
CREATE FUNCTION bide._into_lines(INOUT l bide.limited, p_places tid[], p_us bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  entering text[];
BEGIN
  SELECT array_agg(name ORDER BY place) INTO entering FROM (
    SELECT coalesce("group", '') AS name, min(ARRAY[rank, seq]) AS place
    FROM message WHERE ctid = ANY (p_places) GROUP BY 1
  ) AS g WHERE NOT _has_line(l.id, name);
  UPDATE message SET state = 1, rank = _rank(1, due, priority), limited = l.id
  WHERE ctid = ANY (p_places);
  INSERT INTO turn AS t (limited, name, standing, turn)
  SELECT l.id, name, 1, l.turn + nth FROM unnest(entering) WITH ORDINALITY AS g(name, nth)
  ON CONFLICT (limited, name) DO UPDATE SET (turn, last, freed, standing) = (
    SELECT excluded.turn, CASE WHEN idle THEN 0 ELSE t.last END, CASE WHEN idle THEN 0 ELSE t.freed END,
           _standing(l, t.name, t.running, t.last, true, p_us)
    FROM (SELECT t.running <= 0 AND _opens_for(l, t.name, t.last) + CREDIT <= p_us AS idle) AS i);
  l.turn := l.turn + coalesce(cardinality(entering), 0);
END $$;

-- Put the first due message of each group that has no line into one: see bide.model.rank.
CREATE FUNCTION bide._look_ahead(q bide.queue, INOUT l bide.limited, p_reach bigint, p_us bigint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  seen record;
BEGIN
  WITH RECURSIVE look(n, name, seen, place) AS (
    SELECT 0, l.looked COLLATE "C", 0::bigint, NULL::tid
    UNION ALL
    SELECT look.n + 1, g.name, look.seen + e.seen, e.place
    FROM look CROSS JOIN LATERAL (
      SELECT "group" AS name FROM message WHERE queue = q.id AND "group" > look.name
      ORDER BY "group" LIMIT 1
    ) AS g CROSS JOIN LATERAL (
      SELECT count(*) AS seen, CASE WHEN count(*) <= LOOK_MOST THEN (
               array_agg(m.ctid ORDER BY MAX_PRIORITY - m.priority, m.due, m.seq)
                 FILTER (WHERE m.state = 0 AND m.rank <= p_reach))[1] END AS place
      FROM (
        SELECT ctid, seq, state, rank, due, priority FROM message
        WHERE queue = q.id AND "group" = g.name AND NOT _has_line(l.id, g.name)
        ORDER BY seq LIMIT BEYOND_LOOK_MOST
      ) AS m
    ) AS e
    WHERE look.n < LOOK_GROUPS AND look.seen < LOOK_MESSAGES
  )
  SELECT array_agg(place) FILTER (WHERE place IS NOT NULL) AS places,
         CASE WHEN max(n) = LOOK_GROUPS OR max(look.seen) >= LOOK_MESSAGES THEN max(name) ELSE '' END AS last
  INTO seen FROM look;
  l.looked := seen.last;
  l := _into_lines(l, ARRAY(
    SELECT ctid FROM message WHERE ctid = ANY (seen.places) AND state = 0 AND rank <= p_reach
    FOR UPDATE SKIP LOCKED), p_us);
END $$;

-- Go on with what was leased and ready before the limits: all leases count from now on, and some 1,000
-- messages get into lines. `p_more`: whether there are more.
--
-- A transaction that began before the limits may still make messages ready as if there were none; those
-- that a user's transaction has locked have to wait, too. So the messages are gone through again until
-- a round began after the end of all such transactions: those that began before `horizon`.
CREATE FUNCTION bide._line_up(q bide.queue, INOUT l bide.limited, p_us bigint, OUT p_more boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  seen record;
  places tid[];
  names text[];
BEGIN
  WITH leased AS (
    SELECT ctid FROM message
    WHERE queue = q.id AND state = 2 AND state >= 0 AND limited IS DISTINCT FROM l.id
    ORDER BY rank, seq FOR UPDATE SKIP LOCKED
  ), counted AS (
    UPDATE message SET limited = l.id WHERE ctid = ANY (ARRAY(SELECT ctid FROM leased))
    RETURNING coalesce("group", '') AS name
  ), groups AS (
    INSERT INTO turn AS t (limited, name, standing, turn, running)
    SELECT l.id, name, 0, 0, count(*) FROM counted GROUP BY name
    ON CONFLICT (limited, name) DO UPDATE SET running = t.running + excluded.running
  )
  SELECT l.running + count(*), array_agg(name) INTO l.running, names FROM counted;
  PERFORM _stand(l, names, p_us);
  IF l.lined = '{-1,-1}' THEN
    l.horizon := coalesce(l.horizon, pg_current_xact_id()::text::bigint);
    l.settled := pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= l.horizon;
  END IF;
  SELECT array_agg(s.ctid) FILTER (WHERE s.limited IS DISTINCT FROM l.id) AS places, count(*) AS n,
         max(ARRAY[s.rank, s.seq]) AS last
  INTO seen FROM (
    SELECT ctid, limited, rank, seq FROM message
    WHERE queue = q.id AND state = 1 AND state >= 0 AND (rank, seq) > (l.lined[1], l.lined[2])
    ORDER BY rank, seq LIMIT PROMOTE
  ) AS s;
  places := ARRAY(
    SELECT ctid FROM message WHERE ctid = ANY (seen.places) AND state = 1 FOR UPDATE SKIP LOCKED);
  l := _into_lines(l, places, p_us);
  IF cardinality(places) < cardinality(seen.places) OR EXISTS (
    SELECT FROM message
    WHERE queue = q.id AND state = 2 AND state >= 0 AND limited IS DISTINCT FROM l.id
  ) THEN
    l.horizon := pg_current_xact_id()::text::bigint;
    l.settled := false;
  END IF;
  p_more := seen.n = PROMOTE;
  l.lined := CASE WHEN p_more THEN seen.last WHEN NOT l.settled THEN '{-1,-1}' END;
END $$;
