-- Tables. What changes often is narrow: a claim writes a row of `message` and no `content`.

-- One row: which version of these files made the schema.
CREATE TABLE bide.store (version integer NOT NULL);

CREATE TABLE bide.queue (
  id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name     text COLLATE "C" NOT NULL UNIQUE,
  paused   boolean NOT NULL DEFAULT false,
  keep     bigint  NOT NULL DEFAULT 0,    -- milliseconds for which acked messages are remembered
  weighted boolean NOT NULL DEFAULT false -- whether a message with a priority was ever put
);

-- Which queues a role may use, beside the owner of the schema, who may use all.
CREATE TABLE bide.access (
  role   name   PRIMARY KEY,
  queues text[] NOT NULL  -- patterns as for LIKE
);

-- The order of putting; and the numbers of claims, which are the fencing tokens. A token is larger
-- than those of a store that was lost, because the first is the time of day.
CREATE SEQUENCE bide.seq;
CREATE SEQUENCE bide.token;
SELECT setval('bide.token', (extract(epoch FROM clock_timestamp()) * 1000)::bigint);

-- Where a message stands: one narrow row each, which every change locks. The rank is the order within
-- the state.
--
-- | state | rank |
-- |---|---|
-- | 0 delayed | due * 256 + 255 - priority |
-- | 1 ready | (255 - priority) * 2^42 + due |
-- | 2 leased | when the lease lapses |
-- | 3 dead, 4 acked, 5 expired | when it came there |
CREATE TABLE bide.message (
  seq      bigint   NOT NULL,  -- the order of putting
  rank     bigint   NOT NULL,
  due      bigint   NOT NULL,
  queue    integer  NOT NULL,
  attempts integer  NOT NULL,  -- how many there may be
  attempt  integer  NOT NULL,  -- how many have ended
  size     integer  NOT NULL,  -- bytes of the id, the body and the headers
  state    smallint NOT NULL,
  priority smallint NOT NULL,
  expires  bigint,             -- milliseconds after due
  planned  bigint,             -- the due time asked for, where a retry has moved it
  token    bigint,
  id       text COLLATE "C" NOT NULL,
  "group"  text COLLATE "C",
  holder   text,
  failures text,               -- JSON array of [attempt, moment, holder, reason]
  UNIQUE (queue, id)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE UNIQUE INDEX message_rank ON bide.message (queue, state, rank, seq);
CREATE INDEX message_group ON bide.message (queue, "group", seq) WHERE "group" IS NOT NULL;

-- What a message says: written once, read by claims, deleted at the end.
CREATE TABLE bide.content (
  seq     bigint  PRIMARY KEY,
  is_json boolean NOT NULL,  -- whether the body is JSON text, and not bytes of the user's own
  data    bytea   NOT NULL,  -- the body, byte for byte
  headers text               -- JSON object
);

-- Changes of the counters. Each transaction adds rows of its own, so that nobody waits for another;
-- `fold` adds them up in `total` now and then. `hour` is the due time of pending messages in hours,
-- rounded up, and -1 for everything else.
CREATE TABLE bide.tally (
  queue integer NOT NULL,
  what  text    NOT NULL,
  hour  integer NOT NULL,
  by    bigint  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE bide.total (
  queue integer NOT NULL,
  what  text    NOT NULL,
  hour  integer NOT NULL,
  count bigint  NOT NULL,
  PRIMARY KEY (queue, what, hour)
) WITH (fillfactor = 50);

-- Who waits for a message, and until when: a put wakes only those who would sleep past its due time.
CREATE TABLE bide.sleeper (
  process text    NOT NULL,
  queue   text    NOT NULL,
  until   bigint  NOT NULL,  -- Unix milliseconds
  seen    bigint  NOT NULL,  -- when it last said so
  PRIMARY KEY (queue, process)
) WITH (fillfactor = 50);
-- Rules that several functions share. None of them is for callers.

-- The moment of a command in Unix milliseconds: the caller's in tests, else the server's.
CREATE FUNCTION bide._exactly(p_now bigint) RETURNS double precision LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(p_now, extract(epoch FROM clock_timestamp()) * 1000)::double precision
$$;

CREATE FUNCTION bide._moment(p_now bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT coalesce(p_now, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

CREATE FUNCTION bide._rank(p_state integer, p_due bigint, p_priority integer)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE p_state WHEN 0 THEN p_due * 256 + 255 - p_priority
                      ELSE (255 - p_priority)::bigint * 4398046511104 + p_due END
$$;

CREATE FUNCTION bide._hour(p_due bigint) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT ((p_due + 3599999) / 3600000)::integer
$$;

-- How many bytes a message takes that has not failed.
CREATE FUNCTION bide._size(p_id text, p_data bytea, p_headers text)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT char_length(p_id) + octet_length(p_data) + coalesce(octet_length(p_headers), 0)
$$;

-- The failures with one more; of more than twenty the oldest are dropped. The reason is JSON.
CREATE FUNCTION bide._failed(p_failures text, p_attempt integer, p_moment bigint, p_holder text,
                             p_reason text)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  failure text := '[' || p_attempt || ',' || p_moment || ',' || to_json(coalesce(p_holder, ''))
                  || ',' || p_reason || ']';
BEGIN
  IF p_failures IS NULL OR p_failures = '[]' THEN
    RETURN '[' || failure || ']';
  END IF;
  IF json_array_length(p_failures::json) >= 20 THEN
    SELECT '[' || string_agg(value::text, ',' ORDER BY n) || ']' INTO p_failures
    FROM json_array_elements(p_failures::json) WITH ORDINALITY AS f(value, n)
    WHERE n > json_array_length(p_failures::json) - 19;
  END IF;
  RETURN left(p_failures, -1) || ',' || failure || ']';
END $$;

-- What the counters change by when a message goes from one state to another: `p_was` is null for a
-- new one, `p_is` for one that is gone. `p_cause` is the counter of what happened, if there is one.
CREATE FUNCTION bide._moved(p_was bide.message, p_is bide.message, p_cause text)
RETURNS bide.tally[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  sets CONSTANT text[] := '{pending,pending,leased,dead,kept,kept}';
  moved bide.tally[] := '{}';
BEGIN
  IF p_was.seq IS NOT NULL THEN
    moved := moved || (p_was.queue, sets[p_was.state + 1],
      CASE WHEN p_was.state < 2 THEN _hour(p_was.due) ELSE -1 END, -1)::tally;
  END IF;
  IF p_is.seq IS NOT NULL THEN
    moved := moved || (p_is.queue, sets[p_is.state + 1],
      CASE WHEN p_is.state < 2 THEN _hour(p_is.due) ELSE -1 END, 1)::tally;
  END IF;
  IF p_is.state = 3 THEN
    moved := moved || (p_is.queue, 'died', -1, 1)::tally;
  END IF;
  IF p_cause IS NOT NULL THEN
    moved := moved || (coalesce(p_was.queue, p_is.queue), p_cause, -1, 1)::tally;
  END IF;
  RETURN moved;
END $$;

CREATE FUNCTION bide._count_moves(p_moves bide.tally[]) RETURNS void LANGUAGE sql VOLATILE AS $$
  INSERT INTO tally
  SELECT queue, what, hour, sum(by) FROM unnest(p_moves) GROUP BY queue, what, hour
  HAVING sum(by) <> 0
$$;

-- See that whoever connected may use a queue.
CREATE FUNCTION bide._check_access(p_queue text) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF session_user <> current_user AND NOT EXISTS (
    SELECT FROM access WHERE p_queue LIKE ANY (queues) AND pg_has_role(session_user, role, 'MEMBER')
  ) THEN
    RAISE EXCEPTION 'user % may not use the queue %', session_user, p_queue
      USING ERRCODE = 'insufficient_privilege', HINT = 'SELECT bide.allow(role, queues) lets them';
  END IF;
END $$;

-- A queue to look at; a row of nulls when there is none.
CREATE FUNCTION bide._queue(p_queue text) RETURNS bide.queue LANGUAGE plpgsql STABLE AS $$
DECLARE
  q queue;
BEGIN
  PERFORM _check_access(p_queue);
  SELECT * INTO q FROM queue WHERE name = p_queue;
  RETURN q;
END $$;

-- The queue that a command is going to change, without what was remembered for long enough; a row of
-- nulls when there is none and none is to be made.
CREATE FUNCTION bide._open(p_queue text, p_now bigint, p_make boolean DEFAULT false)
RETURNS bide.queue LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  q queue;
  gone bigint[];
BEGIN
  PERFORM _check_access(p_queue);
  IF p_make THEN
    LOOP  -- the shared lock lasts until the commit: nobody deletes the queue meanwhile
      SELECT * INTO q FROM queue WHERE name = p_queue FOR KEY SHARE;
      EXIT WHEN FOUND;
      INSERT INTO queue (name) VALUES (p_queue) ON CONFLICT DO NOTHING;
    END LOOP;
  ELSE
    SELECT * INTO q FROM queue WHERE name = p_queue;
    IF NOT FOUND THEN
      RETURN q;
    END IF;
  END IF;
  IF EXISTS (SELECT FROM message WHERE queue = q.id AND state BETWEEN 4 AND 5) THEN
    WITH acked AS (
      SELECT ctid, seq FROM message WHERE queue = q.id AND state = 4 AND rank <= p_now - q.keep
      ORDER BY rank, seq LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), expired AS (
      SELECT ctid, seq FROM message
      WHERE queue = q.id AND state = 5 AND rank <= p_now - greatest(q.keep, 86400000)
      ORDER BY rank, seq LIMIT 1000 FOR UPDATE SKIP LOCKED
    ), old AS (
      SELECT * FROM acked UNION ALL SELECT * FROM expired
    ), removed AS (
      DELETE FROM message USING old WHERE message.ctid = old.ctid
    )
    SELECT array_agg(seq) INTO gone FROM old;
    IF gone IS NOT NULL THEN
      DELETE FROM content WHERE seq = ANY (gone);
      INSERT INTO tally VALUES (q.id, 'kept', -1, -cardinality(gone));
    END IF;
  END IF;
  RETURN q;
END $$;

-- Count a failed attempt of a message, which must be locked, and free it: ready again, or dead.
CREATE FUNCTION bide._fail(p_message bide.message, p_moment bigint, p_now bigint, p_reason text,
                           p_final boolean DEFAULT false)
RETURNS bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  dead CONSTANT boolean := p_final OR p_message.attempt + 1 >= p_message.attempts;
BEGIN
  UPDATE message SET
    state = CASE WHEN dead THEN 3 ELSE 1 END,
    rank = CASE WHEN dead THEN p_now ELSE _rank(1, due, priority) END,
    attempt = attempt + 1, token = NULL, holder = NULL,
    failures = _failed(failures, attempt + 1, p_moment, holder, p_reason)
  WHERE queue = p_message.queue AND id = p_message.id RETURNING * INTO p_message;
  RETURN p_message;
END $$;

-- Take a message back whose lease is over.
CREATE FUNCTION bide._lapse(p_message bide.message, p_now bigint)
RETURNS bide.message LANGUAGE sql VOLATILE AS $$
  SELECT _fail(p_message, p_message.rank, p_now,
    '"the lease lapsed: the holder died, hung, or needed longer than its lease"')
$$;

-- A message that is locked from now on; a row of nulls when there is none.
CREATE FUNCTION bide._locked(p_queue integer, p_id text)
RETURNS bide.message LANGUAGE sql VOLATILE AS $$
  SELECT * FROM message WHERE queue = p_queue AND id = p_id FOR UPDATE
$$;

-- Where a message stands in the words of replies: what is delayed and due is ready.
CREATE FUNCTION bide._stands(p_message bide.message, p_now bigint,
                             OUT state smallint, OUT due bigint, OUT until bigint, OUT holder text)
LANGUAGE sql IMMUTABLE AS $$
  SELECT (CASE WHEN p_message.state = 0 AND p_message.due <= p_now THEN 1 ELSE p_message.state END
         )::smallint,
         p_message.due, CASE WHEN p_message.state >= 2 THEN p_message.rank END, p_message.holder
$$;

-- A message as callers see it.
CREATE VIEW bide._message AS
SELECT m.seq, m.queue, m.id, c.is_json, c.data, m.due, m.priority, m.attempt, m.attempts, m.expires,
       m."group", c.headers, m.failures, m.state, m.rank, m.holder, m.planned,
       m.size + coalesce(octet_length(m.failures), 0) AS size
FROM bide.message m JOIN bide.content c ON c.seq = m.seq;
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
-- Claim: lease the next due messages; on the way take back what lapsed and expire what is late.
--
-- Rows are in no order. Rows without data tell of messages that died as their last lease expired:
-- `holder` had it. The last row has no id: its `due` is when to ask again (null: not before a put),
-- its `token` the number of the claim, and `exactly` the server's clock.
CREATE FUNCTION bide._claim(p_queue text, p_now bigint, p_count integer, p_lease bigint,
                            p_holder text, p_max_bytes bigint)
RETURNS TABLE (seq bigint, id text, is_json boolean, data bytea, due bigint, priority smallint,
               attempt integer, attempts integer, expires bigint, "group" text, headers text,
               failures text, planned bigint, holder text, token bigint,
               exactly double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  clock CONSTANT double precision := _exactly(p_now);
  moment CONSTANT bigint := floor(clock);
  q CONSTANT queue := _open(p_queue, moment);
  reach CONSTANT integer := greatest(1024, p_count);
  source smallint;
  last_rank bigint;
  claim bigint;
  taken integer := 0;
  examined integer := 0;
  left_bytes bigint := p_max_bytes;
  picked record;
  good tid[];
  late tid[];
BEGIN
  exactly := clock;
  IF q.id IS NULL OR q.paused THEN
    RETURN NEXT;
    RETURN;
  END IF;
  FOR id, attempt, holder IN SELECT c.id, c.attempt, c.holder FROM _collect(q.id, moment, reach) AS c
  LOOP
    RETURN NEXT;
  END LOOP;
  id := NULL; attempt := NULL; holder := NULL;
  WHILE taken < p_count AND examined < reach LOOP
    source := 0;
    last_rank := moment * 256 + 255;
    IF q.weighted OR EXISTS (SELECT FROM message WHERE queue = q.id AND state = 1) THEN
      PERFORM _promote(q.id, last_rank, reach);
      source := 1;
      last_rank := 9007199254740992;
    END IF;
    SELECT array_agg(p.ctid) AS places, array_agg(p.due) AS dues, array_agg(p.bytes) AS sizes,
           array_agg(p.too_late) AS lates, sum(p.bytes) AS bytes, bool_or(p.too_late) AS any_late,
           count(*) AS n
    INTO picked FROM (
      SELECT m.ctid, m.due, m.size + coalesce(octet_length(m.failures), 0) AS bytes,
             coalesce(moment > m.due + m.expires, false) AS too_late
      FROM message m WHERE m.queue = q.id AND m.state = source AND m.rank <= last_rank
      ORDER BY m.rank, m.seq LIMIT p_count - taken FOR UPDATE SKIP LOCKED
    ) AS p;
    EXIT WHEN picked.n = 0;
    good := picked.places;
    late := '{}';
    IF picked.any_late OR picked.bytes > left_bytes THEN
      good := '{}';
      FOR i IN 1 .. picked.n LOOP
        IF picked.lates[i] THEN
          late := late || picked.places[i];
        ELSIF picked.sizes[i] <= left_bytes OR taken = 0 AND cardinality(good) = 0 THEN
          good := good || picked.places[i];
          left_bytes := left_bytes - picked.sizes[i];
        ELSE
          picked.n := i - 1;
          EXIT;
        END IF;
      END LOOP;
      UPDATE message SET state = 5, rank = moment WHERE ctid = ANY (late);
      IF cardinality(late) > 0 THEN
        INSERT INTO tally VALUES (q.id, 'kept', -1, cardinality(late)),
                                 (q.id, 'expired', -1, cardinality(late));
      END IF;
    END IF;
    IF cardinality(good) > 0 THEN
      claim := coalesce(claim, nextval('token'));
      RETURN QUERY
        UPDATE message m SET state = 2, rank = moment + p_lease, token = claim, holder = p_holder
        FROM content c WHERE m.ctid = ANY (good) AND c.seq = m.seq
        RETURNING m.seq, m.id, c.is_json, c.data, m.due, m.priority, m.attempt + 1, m.attempts,
                  m.expires, m."group", c.headers, m.failures, m.planned, p_holder, claim, clock;
      INSERT INTO tally VALUES (q.id, 'leased', -1, cardinality(good));
    END IF;
    INSERT INTO tally
    SELECT q.id, 'pending', _hour(d), -count(*) FROM unnest(picked.dues[1:picked.n]) AS d GROUP BY 3;
    taken := taken + cardinality(good);
    examined := examined + picked.n;
    EXIT WHEN cardinality(late) = 0;  -- no more is due, or no more fits
  END LOOP;
  IF taken = 0 THEN
    due := _next(q.id, moment);
    IF due <= moment AND p_count > 0 AND examined = 0 AND NOT EXISTS (
      SELECT FROM message WHERE queue = q.id AND state = 2 AND rank <= moment
    ) THEN
      due := moment + 10;  -- somebody else has locked what is due: look again, but do not spin
    END IF;
  END IF;
  token := claim;
  RETURN NEXT;
END $$;

-- Take back up to `p_limit` messages whose lease is over; answer those that are dead now.
CREATE FUNCTION bide._collect(p_queue integer, p_now bigint, p_limit integer)
RETURNS SETOF bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  was message;
  new message;
  moves tally[] := '{}';
BEGIN
  FOR was IN
    SELECT * FROM message WHERE queue = p_queue AND state = 2 AND rank <= p_now
    ORDER BY rank, seq LIMIT p_limit FOR UPDATE SKIP LOCKED
  LOOP
    new := _lapse(was, p_now);
    moves := moves || _moved(was, new, 'lapsed');
    IF new.state = 3 THEN
      new.holder := was.holder;
      RETURN NEXT new;
    END IF;
  END LOOP;
  IF cardinality(moves) > 0 THEN
    PERFORM _count_moves(moves);
  END IF;
END $$;

-- Make up to `p_limit` delayed messages ready that are due, so that the weightiest go first.
CREATE FUNCTION bide._promote(p_queue integer, p_rank bigint, p_limit integer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  places tid[];
BEGIN
  SELECT array_agg(d.ctid) INTO places FROM (
    SELECT ctid FROM message WHERE queue = p_queue AND state = 0 AND rank <= p_rank
    ORDER BY rank, seq LIMIT p_limit FOR UPDATE SKIP LOCKED
  ) AS d;
  UPDATE message SET state = 1, rank = _rank(1, due, priority) WHERE ctid = ANY (places);
END $$;

-- When there is something to claim or to collect; the moment itself or earlier if that is now.
CREATE FUNCTION bide._next(p_queue integer, p_now bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN EXISTS (SELECT FROM message WHERE queue = p_queue AND state = 1) THEN 0
    ELSE least(
      (SELECT rank >> 8 FROM message WHERE queue = p_queue AND state = 0 ORDER BY rank LIMIT 1),
      (SELECT rank FROM message WHERE queue = p_queue AND state = 2 ORDER BY rank LIMIT 1)) END
$$;
-- What may be done to messages by id, and to many by a rule.

-- Do one thing to each message. Answers a row for each that is there: whether it was done, and where
-- the message stands now (`state` null: it is gone).
--
-- | verb | which messages | what |
-- |---|---|---|
-- | cancel, reschedule, bury_unheld | delayed, ready | delete; move to a due time; dead |
-- | revive, purge | dead | ready or delayed again; delete |
-- | release | leased | end the lease, as a failed attempt |
-- | ack, retry, bury, extend | leased, by the token given | as the holder says |
CREATE FUNCTION bide._change(
  p_verb text, p_queue text, p_now bigint, p_ids text[], p_tokens bigint[] DEFAULT NULL,
  p_at bigint DEFAULT NULL, p_delay bigint DEFAULT 0, p_if_due bigint DEFAULT NULL,
  p_reason text DEFAULT '""', p_untouched boolean DEFAULT false, p_only_seqs bigint[] DEFAULT NULL
) RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);
  moves tally[] := '{}';
  wanted record;
  was message;
  new message;
  cause text;
BEGIN
  FOR wanted IN
    SELECT * FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS w(id, token, n)
    ORDER BY id COLLATE "C", n
  LOOP
    was := _locked(q.id, wanted.id);
    CONTINUE WHEN was.seq IS NULL;
    IF was.state = 2 AND was.rank <= moment THEN
      new := _lapse(was, moment);
      moves := moves || _moved(was, new, 'lapsed');
      was := new;
    END IF;
    number := wanted.n;
    done := CASE
      WHEN p_verb IN ('cancel', 'reschedule', 'bury_unheld') THEN
        was.state < 2 AND (p_if_due IS NULL OR was.due = p_if_due)
        AND (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs))
      WHEN p_verb IN ('revive', 'purge') THEN was.state = 3
      WHEN p_verb = 'release' THEN was.state = 2
      ELSE was.state = 2 AND was.token = wanted.token
    END;
    IF NOT done THEN
      SELECT * INTO state, due, until, holder FROM _stands(was, moment);
      RETURN NEXT;
      CONTINUE;
    END IF;
    new := was;
    new.planned := CASE WHEN p_verb NOT IN ('reschedule', 'revive') THEN was.planned END;
    cause := NULL;
    CASE p_verb
      WHEN 'cancel' THEN
        new := NULL;
        cause := 'cancelled';
      WHEN 'purge' THEN
        new := NULL;
        cause := 'purged';
      WHEN 'reschedule' THEN
        new.state := 0;
        new.due := new_due;
      WHEN 'revive' THEN
        new.state := 0;
        new.due := new_due;
        new.attempt := 0;
        cause := 'revived';
      WHEN 'bury_unheld' THEN
        new.state := 3;
        new.rank := moment;
        new.failures := _failed(was.failures, was.attempt, moment, '', p_reason);
      WHEN 'extend' THEN
        new.rank := moment + p_delay;
      WHEN 'ack' THEN
        cause := 'acked';
        new.state := 4;
        new.rank := moment;
        new.attempt := was.attempt + 1;
        IF q.keep = 0 THEN
          new := NULL;
        END IF;
      WHEN 'bury' THEN
        new := _fail(was, moment, moment, p_reason, true);
      WHEN 'release' THEN
        new := _fail(was, moment, moment, p_reason);
        cause := CASE WHEN new.state = 1 THEN 'retried' END;
      WHEN 'retry' THEN
        IF NOT p_untouched THEN
          new := _fail(was, moment, moment, p_reason);
          cause := CASE WHEN new.state = 1 THEN 'retried' END;
        END IF;
        IF p_untouched AND p_delay = 0 THEN
          new.state := 1;
          new.rank := _rank(1, was.due, was.priority);
        ELSIF new.state <> 3 THEN
          new.state := 0;
          new.planned := coalesce(was.planned, was.due);
          new.due := new_due;
          new.expires := was.expires - (new_due - was.due);
        END IF;
    END CASE;
    IF new.seq IS NULL THEN
      DELETE FROM message WHERE queue = q.id AND id = was.id;
      DELETE FROM content WHERE seq = was.seq;
    ELSE
      IF new.state = 0 THEN
        new.rank := _rank(0, new.due, new.priority);
      END IF;
      IF new.state <> 2 THEN
        new.token := NULL;
        new.holder := NULL;
      END IF;
      UPDATE message SET state = new.state, rank = new.rank, due = new.due, expires = new.expires,
        planned = new.planned, attempt = new.attempt, token = new.token, holder = new.holder, failures = new.failures
      WHERE queue = q.id AND id = was.id;
    END IF;
    IF p_verb <> 'extend' THEN
      moves := moves || _moved(was, new, cause);
    END IF;
    SELECT * INTO state, due, until, holder FROM _stands(new, moment);
    due := coalesce(due, CASE WHEN p_verb <> 'ack' THEN was.due END);
    RETURN NEXT;
  END LOOP;
  PERFORM _count_moves(moves);
END $$;

-- Ack messages, as `_change` does and with the same answer. The common case, good leases in a queue
-- that remembers nothing, takes one statement for all.
CREATE FUNCTION bide._ack(p_queue text, p_now bigint, p_ids text[], p_tokens bigint[])
RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  gone bigint[];
BEGIN
  IF q.keep = 0 THEN
    WITH acked AS (
      DELETE FROM message m USING unnest(p_ids, p_tokens) WITH ORDINALITY AS w(id, token, n)
      WHERE m.queue = q.id AND m.id = w.id
        AND m.state + 0 = 2 AND m.token = w.token AND m.rank + 0 > moment  -- not by that index
      RETURNING m.seq, w.n
    ), contents AS (
      DELETE FROM content c USING acked WHERE c.seq = acked.seq
    )
    SELECT array_agg(n) INTO gone FROM acked;
    IF gone IS NOT NULL THEN
      INSERT INTO tally VALUES (q.id, 'leased', -1, -cardinality(gone)),
                               (q.id, 'acked', -1, cardinality(gone));
    END IF;
  END IF;
  IF cardinality(gone) = cardinality(p_ids) THEN
    RETURN;  -- all of them: told by an answer without rows
  END IF;
  RETURN QUERY SELECT n, true, NULL::smallint, NULL::bigint, NULL::bigint, NULL::text
    FROM unnest(gone) AS n;
  RETURN QUERY
    SELECT w.numbers[c.number], c.done, c.state, c.due, c.until, c.holder
    FROM (
      SELECT array_agg(id) AS ids, array_agg(token) AS tokens, array_agg(n) AS numbers
      FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS u(id, token, n)
      WHERE n <> ALL (coalesce(gone, '{}'))
    ) AS w, _change('ack', p_queue, p_now, w.ids, w.tokens) AS c;
  RETURN QUERY SELECT 0::bigint, false, NULL::smallint, NULL::bigint, NULL::bigint, NULL::text;
END $$;

-- The delayed and ready messages that a rule names, at most `p_limit`; ready ones first.
CREATE FUNCTION bide._unheld(p_queue integer, p_group text, p_after bigint, p_before bigint,
                             p_limit integer)
RETURNS SETOF bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  found integer;
BEGIN
  IF p_group IS NOT NULL THEN
    RETURN QUERY SELECT * FROM message
      WHERE queue = p_queue AND "group" = p_group AND state < 2
        AND due >= p_after AND due < p_before
      ORDER BY seq LIMIT p_limit;
    RETURN;
  END IF;
  RETURN QUERY SELECT * FROM message p
    WHERE p.queue = p_queue AND p.state = 1 AND p.due >= p_after AND p.due < p_before
    ORDER BY p.rank, p.seq LIMIT p_limit;
  GET DIAGNOSTICS found = ROW_COUNT;
  RETURN QUERY SELECT * FROM message p
    WHERE p.queue = p_queue AND p.state = 0 AND p.rank >= p_after * 256 AND p.rank < p_before * 256
    ORDER BY p.rank, p.seq LIMIT p_limit - found;
END $$;

-- Delete up to 1,000 messages and count why. Answers how many, and whether more are left.
CREATE FUNCTION bide._delete_where(
  p_cause text, p_queue text, p_now bigint, p_state integer, p_group text, p_after bigint,
  p_before bigint, OUT count integer, OUT more boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  first_due bigint := coalesce(p_after, 0);
  last_due bigint := coalesce(p_before, 9007199254740992);
  moves tally[] := '{}';
  was message;
BEGIN
  count := 0; more := false;
  CASE p_state
    WHEN 0 THEN first_due := moment + 1;
    WHEN 1 THEN last_due := least(last_due, moment + 1);
    ELSE NULL;
  END CASE;
  FOR was IN
    (SELECT * FROM message
     WHERE p_state >= 3 AND queue = q.id AND state = p_state
       AND rank < coalesce(p_before, 9007199254740992) ORDER BY rank, seq LIMIT 1001)
    UNION ALL
    SELECT * FROM _unheld(q.id, p_group, first_due, last_due, 1001) WHERE coalesce(p_state, 0) < 2
  LOOP
    IF count = 1000 THEN
      more := true;
      EXIT;
    END IF;
    DELETE FROM message WHERE queue = q.id AND id = was.id AND state = was.state;
    CONTINUE WHEN NOT FOUND;  -- somebody claimed or changed it meanwhile
    DELETE FROM content WHERE seq = was.seq;
    count := count + 1;
    moves := moves || _moved(was, NULL, CASE WHEN was.state < 4 THEN p_cause END);
  END LOOP;
  PERFORM _count_moves(moves);
END $$;

-- Set what is given for a queue, made if it does not exist.
CREATE FUNCTION bide._configure(p_queue text, p_now bigint, p_paused boolean, p_keep bigint)
RETURNS TABLE (paused boolean, keep bigint, resumed boolean, moment bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
  q queue;
BEGIN
  moment := _moment(p_now);
  q := _open(p_queue, moment, true);
  SELECT * INTO q FROM queue WHERE id = q.id FOR UPDATE;
  resumed := q.paused AND NOT coalesce(p_paused, true);
  UPDATE queue SET paused = coalesce(p_paused, paused), keep = coalesce(p_keep, keep)
  WHERE id = q.id RETURNING paused, keep INTO paused, keep;
  RETURN NEXT;
END $$;

-- Delete a queue that is empty. Answers whether that was done, else what is in it is to be counted.
CREATE FUNCTION bide._delete(p_queue text, p_now bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  q queue := _open(p_queue, _moment(p_now));
BEGIN
  -- Who puts into it meanwhile holds the row, as does a put that has not been committed.
  PERFORM FROM queue WHERE id = q.id FOR UPDATE;
  IF NOT FOUND OR EXISTS (SELECT FROM message WHERE queue = q.id) THEN
    RETURN false;
  END IF;
  DELETE FROM queue WHERE id = q.id;
  DELETE FROM tally WHERE queue = q.id;
  DELETE FROM total WHERE queue = q.id;
  RETURN true;
END $$;
-- What reads and changes nothing.

-- Messages by id. With `p_lock` nobody changes them until the transaction ends.
CREATE FUNCTION bide._find(p_queue text, p_ids text[], p_max_bytes bigint, p_lock boolean)
RETURNS SETOF bide._message
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms'
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
  found bigint[];
BEGIN
  IF p_lock THEN
    PERFORM _locked(q.id, id) FROM unnest(p_ids) AS id ORDER BY id COLLATE "C";
  END IF;
  RETURN QUERY
    SELECT (s.message).* FROM (
      SELECT v AS message, w.n,
             v.size AS size,
             sum(v.size) OVER (ORDER BY w.n) AS total,
             row_number() OVER (ORDER BY w.n) AS nth
      FROM unnest(p_ids) WITH ORDINALITY AS w(id, n)
      JOIN _message v ON v.queue = q.id AND v.id = w.id
    ) AS s WHERE s.total - s.size <= p_max_bytes OR s.nth <= 2 ORDER BY s.n;
END $$;

-- A page of messages, with one more than fits in `p_max_bytes` if there are more. By state, in rank
-- order, of ranks from behind (`p_rank`, `p_seq`) to `p_last`; by group, in the order of putting;
-- else by id.
CREATE FUNCTION bide._scan(
  p_queue text, p_state integer, p_id text, p_rank bigint, p_seq bigint, p_last bigint,
  p_group text, p_after bigint, p_before bigint, p_limit integer, p_max_bytes bigint
) RETURNS SETOF bide._message
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
DECLARE
  q CONSTANT queue := _queue(p_queue);
  row _message;
  total bigint := 0;
  count integer := 0;
BEGIN
  FOR row IN
    SELECT * FROM _message v
    WHERE p_state IS NOT NULL AND v.queue = q.id AND v.state = p_state
      AND (v.rank, v.seq) > (p_rank, p_seq) AND v.rank <= p_last
      AND v.due >= p_after AND v.due < p_before AND (p_group IS NULL OR v."group" = p_group)
    ORDER BY v.rank, v.seq LIMIT p_limit
  LOOP
    RETURN NEXT row;
    total := total + row.size;
    count := count + 1;
    EXIT WHEN total > p_max_bytes AND count > 1;
  END LOOP;
  FOR row IN
    SELECT * FROM _message v
    WHERE p_state IS NULL AND p_group IS NOT NULL AND v.queue = q.id AND v."group" = p_group
      AND v.seq > p_seq AND v.due >= p_after AND v.due < p_before
    ORDER BY v.seq LIMIT p_limit
  LOOP
    RETURN NEXT row;
    total := total + row.size;
    count := count + 1;
    EXIT WHEN total > p_max_bytes AND count > 1;
  END LOOP;
  FOR row IN
    SELECT * FROM _message v
    WHERE p_state IS NULL AND p_group IS NULL AND v.queue = q.id AND v.id > p_id
      AND v.due >= p_after AND v.due < p_before
    ORDER BY v.id LIMIT p_limit
  LOOP
    RETURN NEXT row;
    total := total + row.size;
    count := count + 1;
    EXIT WHEN total > p_max_bytes AND count > 1;
  END LOOP;
END $$;

-- What the counters say, by name and hour.
CREATE VIEW bide._counter AS
SELECT queue, what, hour, sum(n)::bigint AS n FROM (
  SELECT queue, what, hour, count AS n FROM bide.total
  UNION ALL SELECT queue, what, hour, by FROM bide.tally
) AS both_parts GROUP BY queue, what, hour;

-- How many messages are in each state, and what has become of the others, as JSON.
CREATE FUNCTION bide._count(p_queue text, p_now bigint, p_recount boolean) RETURNS json
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  WITH q AS MATERIALIZED (SELECT * FROM _queue(p_queue)),
  moment AS (SELECT _moment(p_now) AS now),
  counted AS (SELECT what, sum(n) AS n FROM _counter WHERE queue = (SELECT id FROM q) GROUP BY what),
  due AS (
    SELECT count(*) FILTER (WHERE state = 0) AS delayed, count(*) AS n, min(due) AS oldest
    FROM message, moment
    WHERE queue = (SELECT id FROM q) AND (state = 1 OR state = 0 AND rank <= now * 256 + 255)
  ),
  there AS (
    SELECT state, count(*) AS n FROM message WHERE p_recount AND queue = (SELECT id FROM q)
    GROUP BY state
  ),
  hours AS (
    SELECT sum(abs(coalesce(c.n, 0) - coalesce(p.n, 0))) AS wrong
    FROM (SELECT hour, n FROM _counter WHERE queue = (SELECT id FROM q) AND what = 'pending') AS c
    FULL JOIN (SELECT _hour(due) AS hour, count(*) AS n FROM message
               WHERE p_recount AND queue = (SELECT id FROM q) AND state < 2 GROUP BY 1) AS p
    USING (hour)
  ),
  strays AS (
    SELECT count(*) AS n FROM message m LEFT JOIN content c ON c.seq = m.seq
    WHERE p_recount AND m.queue = (SELECT id FROM q) AND c.seq IS NULL
  )
  SELECT json_build_object(
    'paused', (SELECT paused FROM q), 'keep', (SELECT keep FROM q),
    'counters', (SELECT json_object_agg(what, n) FROM counted),
    'due', (SELECT n FROM due), 'oldest', (SELECT oldest FROM due),
    'states', CASE WHEN p_recount THEN (SELECT json_object_agg(state, n) FROM there) END,
    'strays', CASE WHEN p_recount THEN (SELECT n FROM strays)
                                       + coalesce((SELECT wrong FROM hours), 0) END)
$$;

-- How many pending messages fall due in each bucket, as rows (number, count). Buckets of whole hours
-- come from the counters. Number -1 is all that is pending, -2 what is due already (for short buckets),
-- -3 where the first bucket begins; from `p_buckets` on it is later than the last.
CREATE FUNCTION bide._forecast(p_queue text, p_now bigint, p_bucket bigint, p_buckets integer)
RETURNS TABLE (number bigint, count bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_column
DECLARE
  moment CONSTANT bigint := _moment(p_now);
  first CONSTANT bigint := CASE WHEN p_bucket < 3600000 THEN moment
                                ELSE moment - moment % 3600000 END;
  q CONSTANT queue := _queue(p_queue);
  by_hour CONSTANT boolean := p_bucket % 3600000 = 0;
  first_hour CONSTANT bigint := first / 3600000 + 1;
  reach CONSTANT bigint := CASE WHEN by_hour THEN first_hour * 3600000
                                ELSE first + p_bucket * p_buckets END;
BEGIN
  RETURN QUERY SELECT -3::bigint, first;
  RETURN QUERY SELECT -1::bigint, sum(n)::bigint FROM _counter
    WHERE queue = q.id AND what = 'pending' HAVING sum(n) IS NOT NULL;
  RETURN QUERY  -- of the hour that has begun, and of short buckets, the messages themselves
    SELECT (rank / 256 - first - 1) / p_bucket, count(*) FROM message
    WHERE queue = q.id AND state = 0 AND rank > moment * 256 + 255 AND rank <= reach * 256 + 255
    GROUP BY 1;
  IF by_hour THEN
    RETURN QUERY SELECT (hour - first_hour) * 3600000 / p_bucket, sum(n)::bigint FROM _counter
      WHERE queue = q.id AND what = 'pending' AND hour > first_hour GROUP BY 1;
  ELSE
    RETURN QUERY SELECT -2::bigint, count(*) FROM message
      WHERE queue = q.id AND (state = 1 OR state = 0 AND rank <= moment * 256 + 255);
  END IF;
END $$;

-- How many delayed and ready messages a rule names.
CREATE FUNCTION bide._count_unheld(p_queue text, p_group text, p_after bigint, p_before bigint)
RETURNS bigint LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT count(*) FROM message p WHERE p.state < 2 AND p.queue = (SELECT (_queue(p_queue)).id)
    AND p.due >= p_after AND p.due < p_before
    AND (p_group IS NULL OR p."group" = p_group)
$$;

-- The names of the queues that begin so, of those that the caller may use.
CREATE FUNCTION bide._queues(p_prefix text) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT q.name FROM queue q WHERE starts_with(q.name, p_prefix) AND (
    session_user = current_user OR EXISTS (
      SELECT FROM access a
      WHERE q.name LIKE ANY (a.queues) AND pg_has_role(session_user, a.role, 'MEMBER')))
  ORDER BY q.name COLLATE "C"
$$;
-- Keeping house, and waking who sleeps.

-- Add up the changes of the counters, unless somebody is at it; and forget processes that are gone.
CREATE FUNCTION bide._fold() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock('bide.tally'::regclass::oid::bigint) THEN
    RETURN;
  END IF;
  WITH changes AS (DELETE FROM tally RETURNING *)
  INSERT INTO total AS t (queue, what, hour, count)
  SELECT queue, what, hour, sum(by) FROM changes GROUP BY queue, what, hour
  ON CONFLICT (queue, what, hour) DO UPDATE SET count = t.count + excluded.count;
  DELETE FROM total WHERE hour >= 0 AND count = 0;
  DELETE FROM sleeper WHERE seen < _moment(NULL) - 60000;
END $$;

-- Say that a process sleeps until a moment unless it is woken (null: it is awake), and answer when
-- there is something to claim: what was put since it looked woke nobody.
CREATE FUNCTION bide._sleep(p_process text, p_queue text, p_until bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  PERFORM _check_access(p_queue);
  PERFORM set_config('synchronous_commit', 'off', true);
  INSERT INTO sleeper VALUES (p_process, p_queue, p_until, _moment(NULL))
  ON CONFLICT (queue, process) DO UPDATE SET until = excluded.until, seen = excluded.seen;
  RETURN _next((SELECT id FROM queue WHERE name = p_queue), 0);
END $$;

-- Wake the processes that would sleep past a moment at which something can be claimed.
CREATE FUNCTION bide._wake(p_process text, p_queue text, p_moment bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  PERFORM _check_access(p_queue);
  PERFORM set_config('synchronous_commit', 'off', true);  -- a hint may be lost with the power
  IF EXISTS (SELECT FROM sleeper WHERE queue = p_queue AND until > p_moment
             AND process <> p_process) THEN
    UPDATE sleeper SET until = p_moment
    WHERE queue = p_queue AND until > p_moment AND process <> p_process;
    PERFORM pg_notify(current_schema(), p_moment || ' ' || p_queue);
  END IF;
END $$;
-- For people, triggers and programs in other languages: one message at a time, in the caller's own
-- transaction, so that an order and its time-out are committed together. Answers hold once that has
-- been committed; a delay counts from the call.

CREATE TYPE bide.outcome AS (
  id    text,
  done  boolean,      -- whether the message was changed as asked
  state text,         -- the state it is in now; null: it is not in the queue
  due   timestamptz
);

-- 1 to 512 bytes without control characters.
CREATE FUNCTION bide._check_name(p_what text, p_value text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF octet_length(p_value) NOT BETWEEN 1 AND 512 OR p_value ~ '[\u0001-\u001f\u007f-\u009f]' THEN
    RAISE EXCEPTION '% must have 1 to 512 bytes and no control characters', p_what
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
END $$;

CREATE FUNCTION bide._due(delay interval, at timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  due timestamptz := coalesce(at, clock_timestamp() + coalesce(delay, '0'));
BEGIN
  IF at IS NOT NULL AND delay IS NOT NULL THEN
    RAISE EXCEPTION 'give delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF due NOT BETWEEN '1970-01-01Z' AND '2100-01-01Z' THEN
    RAISE EXCEPTION 'a message cannot be due at %: that is before 1970 or after 2099', due
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN ceil(extract(epoch FROM due) * 1000);
END $$;

-- Put a message. Without an id it gets one. `on_conflict`: 'keep' the message of that id that is
-- there, or 'replace' it unless a worker holds it.
CREATE FUNCTION bide.put(
  queue text, body json, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
  id text DEFAULT NULL, priority integer DEFAULT 0, attempts integer DEFAULT 10,
  expires interval DEFAULT NULL, "group" text DEFAULT NULL, headers json DEFAULT NULL,
  on_conflict text DEFAULT 'keep'
) RETURNS bide.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  due bigint := _due(delay, at);
  late bigint := ceil(extract(epoch FROM expires) * 1000);
  data bytea := convert_to(body::text, 'UTF8');
  asked CONSTANT text := id;
  met record;
  result outcome;
BEGIN
  IF queue IS NULL OR queue !~ '^([A-Za-z0-9][A-Za-z0-9_.:-]{0,127}/)?[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$' THEN
    RAISE EXCEPTION 'queue % must have 1 to 128 of A-Z a-z 0-9 _ . : -, a letter or digit first', queue
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  id := coalesce(asked, gen_random_uuid()::text);
  PERFORM _check_name('id', id);
  PERFORM _check_name('group', "group") WHERE "group" IS NOT NULL;
  IF priority NOT BETWEEN 0 AND 255 OR attempts NOT BETWEEN 1 AND 10000 OR late < 0
     OR on_conflict NOT IN ('keep', 'replace') OR octet_length(data) > 1048576 THEN
    RAISE EXCEPTION 'priority is 0 to 255, attempts 1 to 10000, expires not negative, on_conflict '
      'keep or replace, and the body has at most 1048576 bytes'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF body IS NULL THEN
    RAISE EXCEPTION 'body is null; the JSON value null is ''null''::json'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF json_typeof(headers) <> 'object' OR EXISTS (
    SELECT FROM json_each(CASE WHEN json_typeof(headers) = 'object' THEN headers END)
    WHERE json_typeof(value) <> 'string'
  ) THEN
    RAISE EXCEPTION 'headers must be a JSON object of texts'
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF on_conflict = 'keep' THEN
    SELECT * INTO met FROM _put(queue, NULL, ARRAY[id], '{t}', ARRAY[data], ARRAY[due], NULL,
      ARRAY[priority]::bigint[], ARRAY[attempts]::bigint[], ARRAY[late], ARRAY["group"],
      ARRAY[headers::text], NULL, NULL, NULL) AS p WHERE p.number > 0;
  ELSE
    SELECT * INTO met FROM _replace(queue, NULL, ARRAY[id], '{t}', ARRAY[data], ARRAY[due], NULL,
      ARRAY[priority]::bigint[], ARRAY[attempts]::bigint[], ARRAY[late], ARRAY["group"],
      ARRAY[headers::text], NULL, NULL, NULL, false, NULL) AS p WHERE p.number > 0;
  END IF;
  PERFORM _wake('', queue, due) WHERE met.number IS NULL;
  result.id := id;
  result.done := met.number IS NULL;
  result.state := _name(coalesce(met.state, CASE WHEN due <= _moment(NULL) THEN 1 ELSE 0 END::smallint));
  result.due := to_timestamp(coalesce(met.due, due) / 1000.0);
  RETURN result;
END $$;

CREATE FUNCTION bide._name(p_state smallint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT ('{delayed,ready,leased,dead,acked,expired}'::text[])[p_state + 1]
$$;

-- Cancel a message that nobody holds. Done: it will not be delivered.
CREATE FUNCTION bide.cancel(queue text, id text) RETURNS bide.outcome
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT (id, coalesce(c.done, false), _name(c.state), to_timestamp(c.due / 1000.0))::outcome
  FROM (SELECT 1) AS one LEFT JOIN _change('cancel', queue, NULL, ARRAY[id]) AS c ON true
$$;

-- Move a message that nobody holds to another due time.
CREATE FUNCTION bide.reschedule(queue text, id text, delay interval DEFAULT NULL,
                                at timestamptz DEFAULT NULL) RETURNS bide.outcome
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  due CONSTANT bigint := _due(delay, at);
  c record;
BEGIN
  SELECT * INTO c FROM _change('reschedule', queue, NULL, ARRAY[id], p_at => due);
  PERFORM _wake('', queue, due) WHERE c.done;
  RETURN (id, coalesce(c.done, false), _name(c.state), to_timestamp(c.due / 1000.0))::outcome;
END $$;

-- Look at a message: no row if there is none. A body that is not JSON is in `bytes`.
CREATE FUNCTION bide.get(queue text, id text)
RETURNS TABLE (state text, due timestamptz, body json, bytes bytea, priority integer,
               attempt integer, attempts integer, "group" text, headers json, failures json,
               holder text, until timestamptz)
LANGUAGE sql SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  SELECT _name((CASE WHEN f.state = 0 AND f.due <= _moment(NULL) THEN 1 ELSE f.state END)::smallint),
         to_timestamp(f.due / 1000.0),
         CASE WHEN f.is_json THEN convert_from(f.data, 'UTF8')::json END,
         CASE WHEN NOT f.is_json THEN f.data END,
         f.priority::integer, f.attempt + (f.state = 2)::integer, f.attempts, f."group",
         f.headers::json, f.failures::json, f.holder,
         CASE WHEN f.state >= 2 THEN to_timestamp(f.rank / 1000.0) END
  FROM _find(queue, ARRAY[id], 9007199254740992, false) AS f
$$;

-- Let a role use the store, by these functions alone: `queues` are patterns as for LIKE.
CREATE FUNCTION bide.allow(role name, queues text[] DEFAULT '{%}') RETURNS void
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
