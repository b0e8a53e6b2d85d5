-- Put. Arrays hold a value for each message; an array that is null holds none. Both functions answer
-- a row for each message that was not stored, with where the one of that id stands, and first a row
-- with the number 0, whose `due` is the moment of the put.

-- Store messages; one whose id is taken is left out.
CREATE FUNCTION bide._put(
  p_queue text, p_now bigint, p_ids text[], p_is_json boolean[], p_data bytea[], p_at bigint[],
  p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[]
) RETURNS TABLE (number bigint, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment, true);
  stored bigint[];
  all_new boolean;
  moves tally[] := '{}';
  met record;
  found message;
BEGIN
  number := 0; due := moment;
  RETURN NEXT;
  IF NOT q.weighted AND EXISTS (SELECT FROM unnest(p_priority) AS p WHERE p > 0) THEN
    UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted;
  END IF;
  WITH item AS MATERIALIZED (
    SELECT nextval('seq') AS seq, i.n, i.id, i.is_json, i.data, i.grp, i.headers, i.expires, i.died,
           coalesce(i.at, moment + coalesce(i.delay, 0)) AS due,
           coalesce(i.priority, 0)::smallint AS priority, coalesce(i.attempts, 10) AS attempts,
           coalesce(i.attempt, 0) AS attempt, i.failures
    FROM unnest(p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts, p_expires, p_group,
                p_headers, p_attempt, p_failures, p_died) WITH ORDINALITY
      AS i(id, is_json, data, at, delay, priority, attempts, expires, grp, headers, attempt,
           failures, died, n)
  ), new AS (
    INSERT INTO message (seq, queue, id, state, rank, due, priority, attempt, attempts, expires,
                         "group", failures, size)
    SELECT seq, q.id, id, CASE WHEN died IS NULL THEN 0 ELSE 3 END,
           coalesce(died, _rank(0, due, priority)), due, priority, attempt, attempts, expires, grp,
           failures, _size(id, data, headers)
    FROM item
    ORDER BY id COLLATE "C", n  -- everybody locks in this order, so that nobody waits in a circle
    ON CONFLICT (queue, id) DO NOTHING RETURNING seq, state, due
  ), contents AS (
    INSERT INTO content SELECT seq, is_json, data, headers FROM item
    WHERE seq IN (SELECT seq FROM new)
  ), counted AS (
    INSERT INTO tally
    SELECT q.id, CASE state WHEN 0 THEN 'pending' ELSE 'dead' END,
           CASE state WHEN 0 THEN _hour(due) ELSE -1 END, count(*)
    FROM new GROUP BY 2, 3
    UNION ALL SELECT q.id, 'put', -1, count(*) FROM new HAVING count(*) > 0
    UNION ALL SELECT q.id, 'died', -1, count(*) FROM new WHERE state = 3 HAVING count(*) > 0
  )
  SELECT count(*) = cardinality(p_ids), array_agg(seq - first) INTO all_new, stored
  FROM new, (SELECT min(seq) - 1 AS first FROM item) AS f;
  IF all_new THEN
    RETURN;
  END IF;
  FOR met IN
    SELECT i.id, i.n FROM unnest(p_ids) WITH ORDINALITY AS i(id, n)
    WHERE i.n <> ALL (coalesce(stored, '{}')) ORDER BY i.id COLLATE "C", i.n
  LOOP
    found := _locked(q.id, met.id);
    IF found.seq IS NULL THEN
      RAISE EXCEPTION 'message % was deleted while its id was put again', met.id
        USING ERRCODE = 'serialization_failure';
    END IF;
    IF found.state = 2 AND found.rank <= moment THEN
      moves := moves || _moved(found, _lapse(found, moment), 'lapsed');
      found := _locked(q.id, met.id);
    END IF;
    number := met.n;
    SELECT * INTO state, due, until, holder FROM _stands(found, moment);
    RETURN NEXT;
  END LOOP;
  PERFORM _count_moves(moves);
END $$;

-- Store messages one by one, in the place of those with their ids that nobody holds. With `p_revive`
-- only dead letters are replaced; with `p_only_seqs` nothing is stored but in those places.
CREATE FUNCTION bide._replace(
  p_queue text, p_now bigint, p_ids text[], p_is_json boolean[], p_data bytea[], p_at bigint[],
  p_delay bigint[], p_priority bigint[], p_attempts bigint[], p_expires bigint[],
  p_group text[], p_headers text[], p_attempt bigint[], p_failures text[], p_died bigint[],
  p_revive boolean, p_only_seqs bigint[]
) RETURNS TABLE (number bigint, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment, true);
  moves tally[] := '{}';
  i record;
  was message;
  new message;
BEGIN
  number := 0; due := moment;
  RETURN NEXT;
  FOR i IN
    WITH item AS MATERIALIZED (  -- numbered in the order given, stored in the order of locking
      SELECT nextval('seq') AS new_seq, u.*, coalesce(u.at, moment + coalesce(u.delay, 0)) AS due
      FROM unnest(p_ids, p_is_json, p_data, p_at, p_delay, p_priority, p_attempts, p_expires,
                  p_group, p_headers, p_attempt, p_failures, p_died) WITH ORDINALITY
        AS u(id, is_json, data, at, delay, priority, attempts, expires, grp, headers, attempt,
             failures, died, n)
    )
    SELECT * FROM item ORDER BY id COLLATE "C", n
  LOOP
    was := _locked(q.id, i.id);
    IF was.state = 2 AND was.rank <= moment THEN
      new := _lapse(was, moment);
      moves := moves || _moved(was, new, 'lapsed');
      was := new;
    END IF;
    IF was.seq IS NULL AND (p_revive OR p_only_seqs IS NOT NULL)
       OR was.state IN (2, 4, 5) OR was.state < 2 AND p_revive
       OR was.seq <> ALL (p_only_seqs) THEN
      number := i.n;
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      RETURN NEXT;
      CONTINUE;
    END IF;
    new := NULL;
    new.queue := q.id;
    new.id := i.id;
    new."group" := i.grp;
    new.size := _size(i.id, i.data, i.headers);
    new.state := CASE WHEN i.died IS NULL THEN 0 ELSE 3 END;
    new.priority := coalesce(i.priority, 0);
    new.rank := coalesce(i.died, _rank(0, i.due, new.priority));
    new.due := i.due;
    new.expires := i.expires;
    new.attempt := coalesce(i.attempt, 0);
    new.attempts := coalesce(i.attempts, 10);
    new.failures := i.failures;
    IF was.seq IS NULL THEN
      new.seq := i.new_seq;
      INSERT INTO message SELECT new.* ON CONFLICT DO NOTHING;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'message % was put by two at a time', i.id
          USING ERRCODE = 'serialization_failure';
      END IF;
      INSERT INTO content VALUES (new.seq, i.is_json, i.data, i.headers);
      moves := moves || _moved(NULL, new, 'put');
    ELSE
      new.seq := was.seq;
      UPDATE content SET is_json = i.is_json, data = i.data, headers = i.headers
      WHERE seq = was.seq;
      DELETE FROM message WHERE queue = q.id AND id = i.id;
      INSERT INTO message SELECT new.*;
      moves := moves || _moved(was, new, CASE WHEN was.state = 3 THEN 'revived' END);
    END IF;
    IF new.priority > 0 AND NOT q.weighted THEN
      UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted;
    END IF;
  END LOOP;
  PERFORM _count_moves(moves);
END $$;
