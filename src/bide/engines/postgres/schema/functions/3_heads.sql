-- Claims of limited queues: see 3_lines.sql for their lines and heads.

-- From when a message of a limited queue may be served, in microseconds; null: when a lease has ended.
CREATE FUNCTION bide._opens(l bide.limited, p_us bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
  opens bigint;
BEGIN
  IF l."limit" > 0 AND l.running - (
    SELECT coalesce(sum(ended), 0) FROM reopened WHERE limited = l.id) >= l."limit" THEN
    RETURN NULL;
  END IF;
  SELECT min(moment) INTO opens FROM (
    (SELECT 0 AS moment FROM limited_group
     WHERE limited = l.id AND place = HEAD_COMPETES AND _has_line(l.id, name)
     ORDER BY rank / STRIPE, tag, rank, seq LIMIT 1)
    UNION ALL
    (SELECT _opens_for(l, name, last) FROM limited_group
     WHERE limited = l.id AND place = HEAD_WAITS AND place > HEAD_COMPETES AND _has_line(l.id, name) ORDER BY last, name LIMIT 1)
    UNION ALL
    SELECT _opens_for(l, e.name, coalesce(g.last, 0))
    FROM (SELECT name, sum(ended) AS ended FROM reopened WHERE limited = l.id GROUP BY name) AS e
    LEFT JOIN limited_group AS g ON g.limited = l.id AND g.name = e.name
    WHERE NOT _is_full(l, e.name, (coalesce(g.running, 0) - e.ended)::bigint)
      AND _has_line(l.id, e.name)
  ) AS first;
  IF opens IS NULL THEN
    RETURN NULL;
  END IF;
  RETURN greatest(opens, p_us, CASE WHEN l.rate > 0 THEN l.last + l.rate END);
END $$;

-- When to claim again after the end of a lease, in milliseconds; null: not before something else.
CREATE FUNCTION bide._opens_again(q bide.queue, p_now bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
  l limited;
BEGIN
  IF q.limited IS NULL OR _is_paused(q, p_now) OR NOT _is_ready(q.id) THEN
    RETURN NULL;
  END IF;
  SELECT * INTO l FROM limited WHERE id = q.limited;
  RETURN (_opens(l, p_now * MICROSECONDS) + UP_TO_MS) / MICROSECONDS;
END $$;

-- Claim from a limited queue, as `_claim` does and with the same answer. The `floor` of a message is its
-- place in the order of serving; that of the last row is as in `_claim`. Its `planned` is `due` in
-- microseconds, and its `attempt` is 1 if more is due than could be put into lines.
CREATE FUNCTION bide._serve(
  q bide.queue, p_now bigint, p_count bigint, p_lease bigint, p_holder text,
  p_max_bytes bigint, p_floor bigint[], p_process text, p_raise bigint, p_sender text, p_number bigint,
  p_place text
) RETURNS TABLE (seq bigint, id text, is_json boolean, data bytea, due bigint, priority smallint,
                 attempt integer, attempts integer, expires bigint, "group" text, headers text,
                 failures text, planned bigint, asked bigint, created bigint, rule text, run text,
                 holder text, token bigint, exactly double precision, floor bigint[], until bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  before CONSTANT limited := _lock_limits(q.limited);  -- the limits as they are stored
  clock CONSTANT double precision := _exactly(p_now);  -- it may have waited for others
  moment CONSTANT bigint := floor(clock);
  us CONSTANT bigint := floor(clock * MICROSECONDS);
  reach CONSTANT integer := greatest(PROMOTE, p_count);  -- how many messages are looked at
  l limited := before;
  claim bigint;  -- the token; null: nothing is claimed yet
  room bigint := p_count;  -- how many messages may still be claimed
  left_bytes bigint := p_max_bytes;  -- how many bytes still fit
  taken integer := 0;  -- how many messages are claimed
  examined integer := 0;  -- these, those that have expired, and lines that others have locked
  behind boolean := false;  -- whether more is due than could be put into lines
  is_full boolean := false;  -- whether the next message does not fit in the answer
  places tid[];  -- of messages that are due and get into lines
  weight bigint;  -- of the highest priority that a head has: the part of a rank above STRIPE
  passed text[] := '{}';  -- groups of which others have locked the messages
  width bigint;  -- how many heads to look at together: more after each time that all were locked
  head record;
  heads _head[];  -- messages of this round, also those that expire, in the order of serving
  lining record;  -- what `_line_up` answers
  serving integer;  -- how many messages of this round are claimed
BEGIN
  exactly := clock;
  l := _reopen(l, us);
  PERFORM _wake_groups(l, us);
  FOR id, attempt, holder IN
    SELECT c.id, c.attempt, c.holder FROM _collect(q.id, moment, reach, p_floor[LOWEST_LEASED]) AS c
  LOOP
    RETURN NEXT;
  END LOOP;
  id := NULL; attempt := NULL; holder := NULL;
  l := _reopen(l, us);  -- again: leases that were taken back have reopened groups
  IF l.lined IS NOT NULL THEN
    lining := _line_up(q, l, us);
    l := lining.l;
    behind := lining.p_more;
  END IF;
  SELECT array_agg(d.ctid) INTO places FROM (
    SELECT ctid FROM message
    WHERE queue = q.id AND state = DELAYED_STATE AND state >= 0
      AND rank BETWEEN _first_rank(q.id, p_floor[LOWEST_DELAYED]) AND moment * PRIORITIES + MAX_PRIORITY
    ORDER BY rank, seq LIMIT reach FOR UPDATE SKIP LOCKED
  ) AS d;
  IF places IS NOT NULL THEN
    PERFORM _into_lines(l, places, us);
    behind := behind OR cardinality(places) = reach AND _first_due(q.id, p_floor[LOWEST_DELAYED]) <= moment;
  END IF;
  IF l."limit" > 0 THEN
    room := least(room, l."limit" - l.running);
  END IF;
  room := least(room, _allowed(l.last, l.rate, us));
  width := room;
  WHILE room > 0 AND examined < reach AND NOT is_full LOOP
    SELECT rank / STRIPE INTO weight FROM limited_group
    WHERE limited = l.id AND place = HEAD_COMPETES AND name <> ALL (passed)
    ORDER BY rank / STRIPE, tag, rank, seq LIMIT 1;
    EXIT WHEN NOT FOUND;
    heads := '{}';
    serving := 0;
    FOR head IN
      -- The messages of this round, in the order of serving. Of each group as many are read as all of them
      -- may have (`share`). The first message of a group has the tag of the group; each one that is served
      -- before it raises that by 1, from the virtual time on (`start`). `bound` is not behind
      -- the first message that was not read though it may be served: what is, waits for the next round.
      SELECT * FROM (
        SELECT g.name, g.shut, m.*, g.start + m.good_before AS served_tag,
               CASE m.good_before WHEN 0 THEN g.tag ELSE g.start + m.good_before END AS tag,
               min(CASE WHEN m.place_in_line = g.share AND m.good_count < g.allowed THEN ARRAY[
                 CASE m.good_count WHEN 0 THEN g.tag ELSE g.start + m.good_count END, m.rank, m.seq] END) OVER () AS bound
        FROM (
          SELECT *, least(allowed, (room + group_count - 1) / group_count) AS share FROM (
            SELECT name, tag, greatest(l.tag, tag) AS start, count(*) OVER () AS group_count,
                   CASE WHEN name = '' THEN room ELSE least(
                     CASE WHEN l.group_limit > 0 THEN l.group_limit - running ELSE room END,
                     _allowed(last, l.group_rate, us)) END AS allowed,
                   q.closes AND _closed_until(q.id, name, moment) IS NOT NULL AS shut
            FROM (
              SELECT name, tag, running, last FROM limited_group
              WHERE limited = l.id AND place = HEAD_COMPETES AND rank / STRIPE = weight AND name <> ALL (passed)
              ORDER BY rank / STRIPE, tag, rank, seq LIMIT least(width, reach - examined)
            ) AS first
          ) AS all_groups
        ) AS g, LATERAL (
          -- `good_count`: how many up to this one are not late; `good_before`: the same without this one.
          SELECT *, row_number() OVER in_line AS place_in_line, count(*) FILTER (WHERE NOT late) OVER in_line AS good_count,
                 count(*) FILTER (WHERE NOT late) OVER in_line - (NOT late)::integer AS good_before
          FROM (
            SELECT ctid AS place, due, rank, seq, size + coalesce(octet_length(failures), 0) AS bytes,
                   coalesce(moment > due + expires, false) AND run IS NULL OR g.shut AS late
            FROM message
            WHERE limited = l.id AND state = READY_STATE AND coalesce("group", '') = g.name
              AND rank < (weight + 1) * STRIPE
            ORDER BY rank, seq LIMIT g.share FOR UPDATE SKIP LOCKED
          ) AS locked WINDOW in_line AS (ORDER BY rank, seq)
        ) AS m
      ) AS all_heads WHERE bound IS NULL OR ARRAY[tag, rank, seq] <= bound ORDER BY tag, rank, seq
    LOOP
      EXIT WHEN serving = room;
      IF NOT head.late THEN
        is_full := head.bytes > left_bytes AND taken + serving > 0;
        EXIT WHEN is_full;
        left_bytes := left_bytes - head.bytes;
        serving := serving + 1;
      END IF;
      heads := heads || (head.place, head.name, head.served_tag, head.due, head.late, head.shut)::_head;
    END LOOP;
    IF serving > 0 THEN
      IF claim IS NULL THEN
        claim := nextval('token');
        PERFORM _begin_claim(q, claim, moment, p_lease, p_sender, p_number, p_place);
      END IF;
      RETURN QUERY
        UPDATE message m SET state = LEASED_STATE, rank = moment + p_lease, token = claim, holder = p_holder,
          process = p_process, since = moment
        FROM unnest(heads) WITH ORDINALITY AS s(place, name, tag, due, late, shut, nth)
        WHERE m.ctid = s.place AND NOT s.late
        RETURNING m.seq, m.id, m.is_json, m.data, m.due, m.priority, m.attempt + 1, m.attempts,
                  m.expires, m."group", m.headers, m.failures, m.planned, m.asked, m.created, m.rule, m.run, p_holder,
                  claim, clock, ARRAY[examined + s.nth], NULL::bigint;
      INSERT INTO tally
      SELECT q.id, 'pending', _hour(h.due), -count(*) FROM unnest(heads) AS h WHERE NOT h.late GROUP BY 3;
    END IF;
    IF serving < cardinality(heads) THEN
      PERFORM _expire(q, array_agg(h.place), array_agg(h.due), moment) FROM unnest(heads) AS h
      WHERE h.late AND NOT h.shut HAVING count(*) > 0;
      PERFORM _shut(q, array_agg(h.place), array_agg(h.due), moment) FROM unnest(heads) AS h
      WHERE h.shut HAVING count(*) > 0;
    END IF;
    IF cardinality(heads) > 0 THEN
      UPDATE limited_group AS g SET running = g.running + s.n, tag = coalesce(s.tag + 1, g.tag), last = s.last,
        place = _place(l, g.name, g.running + s.n, s.last, s.seq IS NOT NULL, us), rank = s.rank, seq = s.seq
      FROM (
        SELECT h.name, h.n, h.tag, first.rank, first.seq,
               CASE WHEN h.name = '' OR h.n = 0 THEN o.last ELSE _served(o.last, l.group_rate, us, h.n) END AS last
        FROM (
          SELECT name, count(*) FILTER (WHERE NOT late) AS n, max(tag) FILTER (WHERE NOT late) AS tag
          FROM unnest(heads) GROUP BY name
        ) AS h JOIN limited_group AS o ON o.limited = l.id AND o.name = h.name
        LEFT JOIN LATERAL (
          SELECT rank, seq FROM message
          WHERE limited = l.id AND state = READY_STATE AND coalesce("group", '') = h.name ORDER BY rank, seq LIMIT 1
        ) AS first ON true
      ) AS s WHERE g.limited = l.id AND g.name = s.name;
      examined := examined + cardinality(heads);
    ELSIF NOT is_full THEN  -- others have locked what is in these lines
      SELECT passed || array_agg(name), examined + count(*) INTO passed, examined FROM (
        SELECT name FROM limited_group
        WHERE limited = l.id AND place = HEAD_COMPETES AND rank / STRIPE = weight AND name <> ALL (passed)
        ORDER BY rank / STRIPE, tag, rank, seq LIMIT least(width, reach - examined)) AS first;
      width := width * LOCKED_MORE;
    END IF;
    IF serving > 0 THEN
      l.tag := greatest(l.tag, (SELECT max(h.tag) FROM unnest(heads) AS h WHERE NOT h.late));
      l.running := l.running + serving;
      l.last := _served(l.last, l.rate, us, serving);
      taken := taken + serving;
      room := room - serving;
      width := room;
    END IF;
  END LOOP;
  IF l IS DISTINCT FROM before THEN
    PERFORM _save_limits(l);
  END IF;
  IF taken > 0 THEN
    INSERT INTO tally VALUES (q.id, 'leased', -1, taken);
  ELSE
    PERFORM _check_new(p_sender, p_number) WHERE p_sender IS NOT NULL;
    planned := _next(q, l, p_floor, us);
    IF planned <= us AND p_count > 0 AND (examined < reach OR cardinality(passed) > 0) AND NOT behind
       AND NOT _may_collect(q.id, moment, p_floor[LOWEST_LEASED])
       AND (room > 0 OR coalesce(_opens(l, us) > us, true)) THEN
      planned := us + CLAIM_AGAIN_US;  -- another claim has locked what is due: look again, but do not spin
    END IF;
    due := -((-planned) / MICROSECONDS);
    until := _asleep(p_process, q.name, moment);
  END IF;
  attempt := behind::integer;
  token := claim;
  expires := q.result_ttl;
  floor := _bounded(p_floor, p_raise);
  RETURN NEXT;
END $$;
