-- Claim: lease the next due messages; before that, take back expired leases, expire late messages, and cancel those
-- of closed groups. One that repeats does not expire: who claims it plans its next run.
--
-- Rows are in no order. Rows without data tell of messages that died as their last lease expired:
-- `holder` had it. The last row has no id: its `due` is when to ask again (null: not before a put),
-- its `token` the number of the claim, its `expires` how long the queue keeps results, and `exactly` the
-- server's clock. If nothing was claimed, its `until` is when `p_waiter` wakes as far as others know; null if it has
-- to store that again.
--
-- `p_waiter` names the caller among those that wait for messages. `p_sender`, `p_number` and `p_place` say who has
-- sent the claim, so that a repetition is found.
--
-- `p_floor` is what the caller's last claim answered as `floor`, while it used the same connection:
-- where to begin to look, so that rows which are deleted, but kept by an old snapshot, are not visited
-- again and again. It has six numbers:
--
-- | number | what it is |
-- |---|---|
-- | LOWEST_DELAYED | the rank from which on delayed messages are looked for |
-- | LOWEST_LEASED | the same of leased messages: when the first lease may end |
-- | BOUND_TIME | null, or a time of an earlier claim, in ms: the ranks are to move up to it |
-- | BOUND_TRANSACTION | the number of the transaction of that claim |
-- | SHORTEST_LEASE | the shortest lease of the queue when the ranks were found, in ms |
-- | ALL_ENDED | 1 if the last claim found that all transactions before BOUND_TRANSACTION have ended, else 0 |
--
-- Once all transactions have ended that began before BOUND_TRANSACTION, nothing can appear that is due
-- before BOUND_TIME, nor a lease that ends before BOUND_TIME + SHORTEST_LEASE: the ranks move up to that.
-- Every put begins its transaction, in this sense, before it reads the clock; what is put for a time that
-- is past says so in `lowered`; and a lease that is shorter than all before says so in `queue`.
CREATE FUNCTION bide._claim(p_queue text, p_now bigint, p_count bigint, p_lease bigint,
                            p_holder text, p_max_bytes bigint, p_floor bigint[],
                            p_waiter text, p_sender text DEFAULT NULL, p_number bigint DEFAULT NULL,
                            p_place text DEFAULT NULL)
RETURNS TABLE (seq bigint, id text, is_json boolean, data bytea, due bigint, priority smallint,
               attempt integer, attempts integer, expires bigint, "group" text, headers text,
               failures text, planned bigint, asked bigint, created bigint, rule text, run text,
               holder text, token bigint, exactly double precision, floor bigint[], until bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  first_in_transaction CONSTANT boolean := pg_current_xact_id_if_assigned() IS NULL;
  clock double precision := _exactly(p_now);
  moment CONSTANT bigint := floor(clock);
  q queue := _open(p_queue, moment);
  leased_at bigint;                 -- when the messages are leased
  reach CONSTANT integer := greatest(PROMOTE, p_count);  -- how many messages are looked at
  source smallint;                  -- the state from which messages are taken: delayed or ready
  first_rank bigint;                -- the ranks between which they are
  last_rank bigint;
  floors bigint[];                  -- where to look: see above
  claim bigint;                     -- the token; null: nothing is claimed yet
  taken integer := 0;               -- how many messages are claimed
  examined integer := 0;            -- these, and those that have ended
  promoted boolean := false;        -- whether due messages were made ready
  left_bytes bigint := p_max_bytes; -- how many bytes still fit
  picked record;                    -- messages that are locked: arrays in the order of ranks
  good_places tid[];                -- of those that are claimed
  late_places tid[];                -- of those that expire
  shut_places tid[];                -- of those whose groups are closed
BEGIN
  exactly := clock;
  IF q.id IS NULL OR q.paused AND _is_paused(q, moment) THEN
    due := _pause_end(q);
    until := _asleep(p_waiter, p_queue, moment);
    RETURN NEXT;
    RETURN;
  END IF;
  IF coalesce(p_lease < q.lease, true) THEN
    q := _shorten(q, p_lease);
  END IF;
  floors := _raised(q, CASE WHEN p_now IS NULL THEN p_floor END, moment);
  IF q.limited IS NOT NULL THEN
    RETURN QUERY SELECT * FROM _serve(
      q, p_now, p_count, p_lease, p_holder, p_max_bytes, floors, p_waiter,
      CASE WHEN first_in_transaction AND p_now IS NULL THEN moment END, p_sender, p_number, p_place);
    RETURN;
  END IF;
  FOR id, attempt, holder IN
    SELECT c.id, c.attempt, c.holder FROM _collect(q.id, moment, reach, floors[LOWEST_LEASED]) AS c
    WHERE floors[LOWEST_LEASED] <= moment
  LOOP
    RETURN NEXT;
  END LOOP;
  id := NULL; attempt := NULL; holder := NULL;
  WHILE taken < p_count AND examined < reach LOOP
    -- Without priorities delayed messages that are due are claimed as they are. Else they are made ready
    -- first, since only the ranks of ready messages go by priority.
    source := DELAYED_STATE;
    first_rank := _first_rank(q.id, floors[LOWEST_DELAYED]);
    last_rank := moment * PRIORITIES + MAX_PRIORITY;
    IF q.weighted OR _is_ready(q.id) THEN
      IF NOT promoted THEN
        PERFORM _promote(q.id, first_rank, last_rank, reach);
        promoted := true;
      END IF;
      source := READY_STATE;
      first_rank := 0;
      last_rank := EVERYTHING;
    END IF;
    SELECT array_agg(p.ctid) AS places, array_agg(p.due) AS dues, array_agg(p.bytes) AS sizes,
           array_agg(p.too_late) AS lates, array_agg(p.shut) AS shuts, sum(p.bytes) AS bytes,
           bool_or(p.too_late OR p.shut) AS any_unfit,
           count(*) AS n
    INTO picked FROM (
      SELECT m.ctid, m.due, m.size + coalesce(octet_length(m.failures), 0) AS bytes,
             coalesce(moment > m.due + m.expires, false) AND m.run IS NULL AS too_late,
             q.closes AND _closed_until(q.id, m."group", moment) IS NOT NULL AS shut
      FROM message m
      WHERE m.queue = q.id AND m.state = source AND m.state >= 0
        AND m.rank BETWEEN first_rank AND last_rank
      ORDER BY m.rank, m.seq LIMIT p_count - taken FOR UPDATE SKIP LOCKED
    ) AS p;
    EXIT WHEN picked.n = 0;
    good_places := picked.places;
    late_places := '{}';
    shut_places := '{}';
    IF picked.any_unfit OR picked.bytes > left_bytes THEN
      good_places := '{}';
      FOR i IN 1 .. picked.n LOOP
        IF picked.shuts[i] THEN
          shut_places := shut_places || picked.places[i];
        ELSIF picked.lates[i] THEN
          late_places := late_places || picked.places[i];
        ELSIF picked.sizes[i] <= left_bytes OR taken = 0 AND cardinality(good_places) = 0 THEN
          good_places := good_places || picked.places[i];
          left_bytes := left_bytes - picked.sizes[i];
        ELSE  -- it does not fit, so neither it nor those behind it are claimed
          picked.n := i - 1;
          EXIT;
        END IF;
      END LOOP;
      IF cardinality(late_places) > 0 THEN
        PERFORM _expire(q, late_places, NULL, moment);
      END IF;
      IF cardinality(shut_places) > 0 THEN
        PERFORM _shut(q, shut_places, NULL, moment);
      END IF;
    END IF;
    IF cardinality(good_places) > 0 THEN
      IF claim IS NULL THEN
        claim := nextval('token');
        -- Not `moment`: a claim that began later may have taken back, meanwhile, what this one found.
        clock := _exactly(p_now);
        leased_at := floor(clock);
        PERFORM _begin_claim(q, claim, leased_at, p_lease, p_sender, p_number, p_place);
      END IF;
      RETURN QUERY
        UPDATE message m SET state = LEASED_STATE, rank = leased_at + p_lease, token = claim, holder = p_holder,
          process = p_waiter, since = leased_at, limited = NULL  -- limits may have come meanwhile, and do not count it yet
        WHERE m.ctid = ANY (good_places)
        RETURNING m.seq, m.id, m.is_json, m.data, m.due, m.priority, m.attempt + 1, m.attempts,
                  m.expires, m."group", m.headers, m.failures, m.planned, m.asked, m.created, m.rule, m.run, p_holder,
                  claim, clock, NULL::bigint[], NULL::bigint;
      INSERT INTO tally VALUES (q.id, 'leased', -1, cardinality(good_places));
    END IF;
    INSERT INTO tally
    SELECT q.id, 'pending', _hour(d), -count(*) FROM unnest(picked.dues[1:picked.n]) AS d GROUP BY 3;
    taken := taken + cardinality(good_places);
    examined := examined + picked.n;
    EXIT WHEN cardinality(late_places || shut_places) = 0;  -- no more is due, or no more fits
  END LOOP;
  IF taken = 0 THEN
    PERFORM _check_new(p_sender, p_number) WHERE p_sender IS NOT NULL;
    due := _next(q, NULL, floors, NULL) / MICROSECONDS;
    IF due <= moment AND p_count > 0 AND examined = 0
       AND NOT _may_collect(q.id, moment, floors[LOWEST_LEASED]) THEN
      due := moment + CLAIM_AGAIN;  -- another claim has locked what is due: look again, but do not spin
    END IF;
    until := _asleep(p_waiter, p_queue, moment);
  END IF;
  exactly := clock;
  token := claim;
  expires := q.result_ttl;
  floor := _bounded(floors, CASE WHEN first_in_transaction AND p_now IS NULL THEN moment END);
  RETURN NEXT;
END $$;

-- Add the row of a batch that is a claim with messages: another changes nothing for its caller.
CREATE FUNCTION bide._begin_claim(q bide.queue, p_token bigint, p_now bigint, p_lease bigint,
                                  p_sender text, p_number bigint, p_place text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_sender IS NOT NULL THEN
    PERFORM _begin(p_sender, p_number, json_build_object(p_place, json_build_object(
      'until', p_now + p_lease, 'reply', json_build_object(
        'token', p_token, 'now', p_now, 'messages', '[]'::json, 'results', q.result_ttl > 0)))::text);
  END IF;
END $$;

-- Expire messages that are late. `p_dues`: their due times, if the counters have to follow.
CREATE FUNCTION bide._expire(q bide.queue, p_places tid[], p_dues bigint[], p_now bigint)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF greatest(q.history, q.result_ttl) > 0 THEN
    PERFORM _remember_end(q, m, EXPIRED_END, p_now, NULL) FROM message AS m WHERE m.ctid = ANY (p_places);
  END IF;
  UPDATE message SET state = EXPIRED_STATE, rank = p_now WHERE ctid = ANY (p_places);
  PERFORM _note_expired(q.id);
  INSERT INTO tally
  SELECT q.id, what, -1, cardinality(p_places) FROM unnest('{kept,expired}'::text[]) AS what
  UNION ALL
  SELECT q.id, 'pending', _hour(due), -count(*) FROM unnest(p_dues) AS due GROUP BY _hour(due);
END $$;

-- The lowest rank at which a delayed message can be.
CREATE FUNCTION bide._first_rank(p_queue integer, p_floor bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT least(p_floor, min(rank)) FROM lowered WHERE queue = p_queue);
END $$;

-- Whether there is a message in the state of ready. `EXISTS` would leave a choice of indices.
CREATE FUNCTION bide._is_ready(p_queue integer) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT rank FROM message WHERE queue = p_queue AND state = READY_STATE ORDER BY rank LIMIT 1
  ) IS NOT NULL;
END $$;

-- When the next delayed message is due; null when there is none.
CREATE FUNCTION bide._first_due(p_queue integer, p_floor bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
  first_rank CONSTANT bigint := _first_rank(p_queue, p_floor);
BEGIN
  RETURN (
    SELECT rank >> 8 FROM message WHERE queue = p_queue AND state = DELAYED_STATE AND rank >= first_rank
    ORDER BY rank LIMIT 1
  );
END $$;

-- When the next lease lapses; null when there is none.
CREATE FUNCTION bide._first_lapse(p_queue integer, p_floor bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (
    SELECT rank FROM message WHERE queue = p_queue AND state = LEASED_STATE AND rank >= p_floor
    ORDER BY rank LIMIT 1
  );
END $$;

-- Store that a lease is shorter than all before.
CREATE FUNCTION bide._shorten(q bide.queue, p_lease bigint) RETURNS bide.queue
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  UPDATE queue SET lease = p_lease WHERE id = q.id AND coalesce(p_lease < lease, true);
  q.lease := p_lease;
  RETURN q;
END $$;

-- Where a claim may begin: for leases anywhere, if there are shorter ones since the caller's last claim.
CREATE FUNCTION bide._holds(q bide.queue, p_floor bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN p_floor[SHORTEST_LEASE] = q.lease THEN p_floor
              ELSE ARRAY[coalesce(p_floor[LOWEST_DELAYED], 0), 0, p_floor[BOUND_TIME], p_floor[BOUND_TRANSACTION], q.lease] END
$$;

-- Where a claim begins: see `_claim`.
CREATE FUNCTION bide._raised(q bide.queue, p_floor bigint[], p_moment bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  floors bigint[] := _holds(q, p_floor);
  bound CONSTANT bigint := floors[BOUND_TIME];
  first_lapse CONSTANT bigint := bound + coalesce(q.lease, 0);
BEGIN
  IF p_moment < greatest(bound, floors[LOWEST_DELAYED] / PRIORITIES) THEN
    RETURN ARRAY[0, 0, NULL, NULL, q.lease];  -- the clock was set back
  END IF;
  floors[ALL_ENDED] := 0;
  IF bound IS NULL OR pg_snapshot_xmin(pg_current_snapshot())::text::bigint < floors[BOUND_TRANSACTION] THEN
    RETURN floors;  -- a transaction is open that may still put a message before that time
  END IF;
  floors[LOWEST_DELAYED] := least(bound * PRIORITIES, (  -- by a later snapshot, which sees all that these have done
    SELECT rank FROM message WHERE queue = q.id AND state = DELAYED_STATE
      AND rank >= floors[LOWEST_DELAYED] AND rank < bound * PRIORITIES
    ORDER BY rank LIMIT 1));
  floors[LOWEST_LEASED] := least(first_lapse, (
    SELECT rank FROM message WHERE queue = q.id AND state = LEASED_STATE
      AND rank >= floors[LOWEST_LEASED] AND rank < first_lapse
    ORDER BY rank LIMIT 1));
  floors[BOUND_TIME] := NULL;
  floors[ALL_ENDED] := 1;
  RETURN floors;
END $$;

-- What the next claim begins with. With `p_moment`, that may become the time to wait for.
CREATE FUNCTION bide._bounded(p_floor bigint[], p_moment bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF p_floor[BOUND_TIME] IS NULL AND p_moment IS NOT NULL THEN
    p_floor[BOUND_TRANSACTION] := pg_current_xact_id()::text::bigint;
    p_floor[BOUND_TIME] := p_moment;
  END IF;
  RETURN p_floor;
END $$;

-- Take back up to `p_limit` messages whose lease is over; answer those that are dead now.
CREATE FUNCTION bide._collect(p_queue integer, p_now bigint, p_limit integer, p_floor bigint)
RETURNS SETOF bide.message LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  was message;
  new message;
BEGIN
  FOR was IN
    SELECT * FROM message
    WHERE queue = p_queue AND state = LEASED_STATE AND rank BETWEEN p_floor AND p_now
    ORDER BY rank, seq LIMIT p_limit FOR UPDATE SKIP LOCKED
  LOOP
    new := _lapse(was, p_now);
    IF new.state = DEAD_STATE THEN
      new.holder := was.holder;
      RETURN NEXT new;
    END IF;
  END LOOP;
END $$;

-- Whether a lease is over that no transaction has locked.
CREATE FUNCTION bide._may_collect(p_queue integer, p_now bigint, p_floor bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  PERFORM FROM message
  WHERE queue = p_queue AND state = LEASED_STATE AND rank BETWEEN p_floor AND p_now
  ORDER BY rank, seq LIMIT 1 FOR UPDATE SKIP LOCKED;
  RETURN FOUND;
END $$;

-- Make up to `p_limit` delayed messages ready that are due, so that the highest priorities go first.
CREATE FUNCTION bide._promote(p_queue integer, p_first bigint, p_last bigint, p_limit integer)
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  places tid[];
BEGIN
  SELECT array_agg(d.ctid) INTO places FROM (
    SELECT ctid FROM message
    WHERE queue = p_queue AND state = DELAYED_STATE AND rank BETWEEN p_first AND p_last
    ORDER BY rank, seq LIMIT p_limit FOR UPDATE SKIP LOCKED
  ) AS d;
  UPDATE message SET state = READY_STATE, rank = _rank(READY_STATE, due, priority) WHERE ctid = ANY (places);
END $$;

-- When there is something to claim or to collect, in microseconds; the time itself or earlier if that is
-- now. `l` is a row of nulls for a queue without limits.
CREATE FUNCTION bide._next(q bide.queue, l bide.limited, p_floor bigint[], p_us bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF q.limited IS NULL AND _is_ready(q.id) THEN
    RETURN 0;
  END IF;
  RETURN least(CASE WHEN q.limited IS NOT NULL THEN _opens(l, p_us) END,
               MICROSECONDS * _first_lapse(q.id, p_floor[LOWEST_LEASED]), MICROSECONDS * _first_due(q.id, p_floor[LOWEST_DELAYED]));
END $$;
