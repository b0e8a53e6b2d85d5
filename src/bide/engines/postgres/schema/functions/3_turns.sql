-- Claims of limited queues: see 3_lines.sql for their lines and turns.

-- From when a message of a limited queue may be served, in microseconds; null: when a lease has ended.
CREATE FUNCTION bide._opens(l bide.limited, p_us bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
  opens bigint;
BEGIN
  IF l."limit" > 0 AND l.running - (
    SELECT coalesce(sum(ended), 0) FROM lease_end WHERE limited = l.id) >= l."limit" THEN
    RETURN NULL;
  END IF;
  SELECT min(moment) INTO opens FROM (
    (SELECT 0 AS moment FROM turn
     WHERE limited = l.id AND standing = 1 AND _has_line(l.id, name) ORDER BY turn, name LIMIT 1)
    UNION ALL
    (SELECT _opens_for(l, name, last) FROM turn
     WHERE limited = l.id AND standing = 2 AND _has_line(l.id, name) ORDER BY last, name LIMIT 1)
    UNION ALL
    SELECT _opens_for(l, e.name, coalesce(t.last, 0))
    FROM (SELECT name, sum(ended) AS ended FROM lease_end WHERE limited = l.id GROUP BY name) AS e
    LEFT JOIN turn AS t ON t.limited = l.id AND t.name = e.name
    WHERE NOT _is_full(l, e.name, (coalesce(t.running, 0) - e.ended)::bigint)
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
  IF q.limited IS NULL OR q.paused OR NOT _is_ready(q.id) THEN
    RETURN NULL;
  END IF;
  SELECT * INTO l FROM limited WHERE id = q.limited;
  RETURN (_opens(l, p_now * MICROSECONDS) + UP_TO_MS) / MICROSECONDS;
END $$;

-- Claim from a limited queue, as `_claim` does and with the same answer. The `floor` of a message is its
-- place in the order of serving, and when the last limit let it go (0: none held it); that of the last
-- row is as in `_claim`. Its `planned` is `due` in microseconds, and its `attempt` is 1 if more is due
-- than could be put into lines.
CREATE FUNCTION bide._take_turns(
  q bide.queue, p_now bigint, p_count bigint, p_slots bigint, p_lease bigint, p_holder text,
  p_max_bytes bigint, p_floor bigint[], p_process text, p_raise bigint, p_sender text, p_number bigint,
  p_place text
) RETURNS TABLE (seq bigint, id text, is_json boolean, data bytea, due bigint, priority smallint,
                 attempt integer, attempts integer, expires bigint, "group" text, headers text,
                 failures text, planned bigint, asked bigint, created bigint, holder text, token bigint,
                 exactly double precision, floor bigint[], until bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  before CONSTANT limited := _lock_limits(q.limited);
  clock CONSTANT double precision := _exactly(p_now);  -- it may have waited for others
  moment CONSTANT bigint := floor(clock);
  us CONSTANT bigint := floor(clock * MICROSECONDS);
  reach CONSTANT integer := greatest(PROMOTE, p_count);
  l limited := before;
  claim bigint;
  room bigint := least(p_count, p_slots);
  left_bytes bigint := p_max_bytes;
  taken integer := 0;
  examined integer := 0;
  is_more boolean := false;  -- whether more is due than was put into lines
  behind boolean := false;
  is_full boolean := false;
  late_name text;
  places tid[];
  names text[];
  head record;
  heads _head[];
  lining record;
  serving integer;
BEGIN
  exactly := clock;
  l := _fold_limits(l, us);
  PERFORM _wake_groups(l, us);
  FOR id, attempt, holder IN
    SELECT c.id, c.attempt, c.holder FROM _collect(q.id, moment, reach, p_floor[2]) AS c
  LOOP
    RETURN NEXT;
  END LOOP;
  id := NULL; attempt := NULL; holder := NULL;
  l := _fold_limits(l, us);
  IF l.lined IS NOT NULL THEN
    lining := _line_up(q, l, us);
    l := lining.l;
    behind := lining.p_more;
  END IF;
  SELECT array_agg(d.ctid) INTO places FROM (
    SELECT ctid FROM message
    WHERE queue = q.id AND state = 0 AND state >= 0
      AND rank BETWEEN _first_rank(q.id, p_floor[1]) AND moment * PRIORITIES + MAX_PRIORITY
    ORDER BY rank, seq LIMIT reach FOR UPDATE SKIP LOCKED
  ) AS d;
  IF places IS NOT NULL THEN
    l := _into_lines(l, places, us);
    is_more := cardinality(places) = reach AND _first_due(q.id, p_floor[1]) <= moment;
    behind := behind OR is_more;
  END IF;
  IF l."limit" > 0 THEN
    room := least(room, l."limit" - l.running);
  END IF;
  room := least(room, _allowed(l.last, l.rate, us));
  IF is_more AND room > 0 THEN
    l := _look_ahead(q, l, moment * PRIORITIES + MAX_PRIORITY, us);
  END IF;
  WHILE room > 0 AND examined < reach AND NOT is_full LOOP
    late_name := NULL;
    heads := '{}';
    FOR head IN
      -- As many messages of each group as all of them may have: so they are served in the order of turns.
      SELECT m.*, g.name, row_number() OVER (PARTITION BY g.nth) AS round, g.freed, g.last
      FROM (
        SELECT t.*, row_number() OVER (ORDER BY turn, name) AS nth, count(*) OVER () AS n FROM (
          SELECT name, turn, freed, last, CASE WHEN name = '' THEN room ELSE least(
                   CASE WHEN l.group_limit > 0 THEN l.group_limit - running ELSE room END,
                   _allowed(last, l.group_rate, us)) END AS may
          FROM turn WHERE limited = l.id AND standing = 1
          ORDER BY turn, name LIMIT least(room, reach - examined)
        ) AS t
      ) AS g, LATERAL (
        SELECT ctid AS place, due, size + coalesce(octet_length(failures), 0) AS bytes,
               coalesce(moment > due + expires, false) AS too_late
        FROM message
        WHERE limited = l.id AND state = 1 AND coalesce("group", '') = g.name
        ORDER BY rank, seq LIMIT least(g.may, room / g.n) FOR UPDATE SKIP LOCKED
      ) AS m ORDER BY round, g.nth
    LOOP
      late_name := CASE WHEN head.too_late THEN head.name END;
      is_full := head.bytes > left_bytes AND (taken > 0 OR cardinality(heads) > 0);
      EXIT WHEN head.too_late OR is_full;
      left_bytes := left_bytes - head.bytes;
      heads := heads || (head.place, head.name, head.round, head.freed, head.last, head.due)::_head;
    END LOOP;
    serving := cardinality(heads);
    IF serving > 0 THEN
      IF claim IS NULL THEN
        claim := nextval('token');
        PERFORM _begin_claim(q, claim, moment, p_lease, p_sender, p_number, p_place);
      END IF;
      RETURN QUERY
        UPDATE message m SET state = 2, rank = moment + p_lease, token = claim, holder = p_holder,
          process = p_process, since = moment
        FROM (
          SELECT place, taken + nth AS nth, greatest(l.freed, s.freed, (greatest(
                   _opened(l.last, l.rate, us, nth), CASE WHEN s.name <> '' THEN
                     _opened(s.last, l.group_rate, us, s.round) END) + UP_TO_MS) / MICROSECONDS) AS freed
          FROM unnest(heads) WITH ORDINALITY AS s(place, name, round, freed, last, due, nth)
        ) AS s WHERE m.ctid = s.place
        RETURNING m.seq, m.id, m.is_json, m.data, m.due, m.priority, m.attempt + 1, m.attempts,
                  m.expires, m."group", m.headers, m.failures, m.planned, m.asked, m.created, p_holder, claim,
                  clock, ARRAY[s.nth, CASE WHEN s.freed > m.due THEN s.freed ELSE 0 END], NULL::bigint;
      INSERT INTO tally
      SELECT q.id, 'pending', _hour(h.due), -count(*) FROM unnest(heads) AS h GROUP BY 3;
      l.turn := (l.turn / GAP + 1) * GAP;
      UPDATE turn AS t SET turn = l.turn + s.nth * GAP, running = t.running + s.n,
        last = _served(t.last, l.group_rate, us, s.n),
        standing = _standing(l, t.name, t.running + s.n, _served(t.last, l.group_rate, us, s.n),
                             _has_line(l.id, t.name), us)
      FROM (SELECT name, count(*) AS n, max(nth) AS nth
            FROM unnest(heads) WITH ORDINALITY AS h(place, name, round, freed, last, due, nth)
            GROUP BY name) AS s
      WHERE t.limited = l.id AND t.name = s.name;
      l.turn := l.turn + (serving - 1) * GAP;
      l.running := l.running + serving;
      l.last := _served(l.last, l.rate, us, serving);
      taken := taken + serving;
      examined := examined + serving;
      room := room - serving;
    END IF;
    IF late_name IS NOT NULL THEN
      examined := examined + _expire_heads(q, l, late_name, moment, reach - examined);
      PERFORM _stand(l, ARRAY[late_name], us);
    ELSIF serving = 0 AND NOT is_full THEN
      names := ARRAY(SELECT name FROM turn WHERE limited = l.id AND standing = 1
                     ORDER BY turn, name LIMIT least(room, reach - examined));
      EXIT WHEN NOT _stand(l, names, us);  -- there are none, or others have locked what is in line
      examined := examined + cardinality(names);
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
    IF planned <= us AND p_count > 0 AND examined < reach AND NOT behind
       AND NOT _may_collect(q.id, moment, p_floor[2])
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

