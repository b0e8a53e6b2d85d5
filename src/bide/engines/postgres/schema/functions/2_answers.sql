-- The answers of batches, of senders that repeat a command if its reply was lost: what was executed is
-- not executed again. See bide.engines.repetition.
--
-- A batch adds its row before it changes anything, so a repetition waits for an original that still
-- runs: both want to add the same row. `_fold` removes a row once its sender has sent another batch.

-- Add the row of a batch that nobody can have executed before, with its answers if they are known.
CREATE FUNCTION bide._begin(p_sender text, p_number bigint, p_answers text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO answer
  SELECT p_sender, p_number, floor(extract(epoch FROM clock_timestamp()) * SECOND_MS), p_answers
  WHERE NOT EXISTS (SELECT FROM answer WHERE sender = p_sender AND number > p_number)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'this or a later batch of its sender was executed before' USING ERRCODE = 'BD001';
  END IF;
END $$;

-- The same for a batch of several commands, which may be of several senders, in the order of their names.
CREATE FUNCTION bide._begin_batches(p_senders text[], p_numbers bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '5s' AS $$
BEGIN
  PERFORM _begin(sender, number) FROM unnest(p_senders, p_numbers) AS s(sender, number);
END $$;

-- Refuse a claim without messages if it was executed before: that adds no row.
CREATE FUNCTION bide._check_new(p_sender text, p_number bigint) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF EXISTS (SELECT FROM answer WHERE sender = p_sender AND number >= p_number) THEN
    RAISE EXCEPTION 'this or a later batch of its sender was executed before' USING ERRCODE = 'BD001';
  END IF;
END $$;

-- The outcome of a command for one message, as `answers` have it: a list, because a list of objects
-- would repeat their names.
CREATE FUNCTION bide._outcome(p_number bigint, p_done boolean, p_state smallint, p_due bigint,
                              p_until bigint, p_holder text, p_successor bigint)
RETURNS json LANGUAGE sql STABLE AS $$
  SELECT json_build_array(p_number, p_done, p_state, p_due, p_until, p_holder, p_successor)
$$;

-- Remember the answer of the only command of a batch, or of several puts that were joined: then `p_place`
-- has the place and the number of messages of each. What is longer than MAX_KEPT is not kept.
CREATE FUNCTION bide._remember(p_sender text, p_number bigint, p_place text, p_outcomes json[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  outcomes CONSTANT text := array_to_json(p_outcomes);
BEGIN
  UPDATE answer SET answers = '{"' || p_place || '":' || CASE
    WHEN octet_length(outcomes) <= MAX_KEPT THEN outcomes ELSE '{"type":"not_kept"}' END || '}'
  WHERE sender = p_sender AND number = p_number;
END $$;

-- Make senders known before their first batch: a repetition of that is a smaller risk than one of a
-- sender that the store has forgotten.
CREATE FUNCTION bide._enroll(p_senders text[], p_numbers bigint[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
  INSERT INTO answer SELECT sender, number - 1, _moment(NULL)
  FROM unnest(p_senders, p_numbers) AS s(sender, number) ORDER BY sender
  ON CONFLICT DO NOTHING
$$;

-- Before a batch that may have been executed, in whole or in part: add its row for each sender, and
-- wait for originals that still run. `p_repeated`: whether a command of the sender is repeated. Answers a
-- row for each sender, in order: what is remembered of the batch, and whether its commands may not be
-- executed, because the store has forgotten the sender ("unknown") or executed a later batch ("late").
CREATE FUNCTION bide._recall(p_senders text[], p_numbers bigint[], p_repeated boolean[])
RETURNS TABLE (answers text, refused text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '5s' AS $$
#variable_conflict use_column
DECLARE
  batch record;  -- the batch of one sender
BEGIN
  FOR batch IN
    SELECT * FROM unnest(p_senders, p_numbers, p_repeated) WITH ORDINALITY AS s(sender, number, repeated, n)
    ORDER BY n
  LOOP
    answers := NULL;
    refused := NULL;
    INSERT INTO answer
    SELECT batch.sender, batch.number, _moment(NULL)
    WHERE NOT batch.repeated OR EXISTS (SELECT FROM answer WHERE sender = batch.sender)
    ON CONFLICT DO NOTHING;
    SELECT a.answers INTO answers FROM answer AS a WHERE sender = batch.sender AND number = batch.number FOR UPDATE;
    IF NOT FOUND THEN
      refused := 'unknown';
    ELSIF EXISTS (SELECT FROM answer WHERE sender = batch.sender AND number > batch.number) THEN
      refused := 'late';
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- Remember the answers of a batch, by sender.
CREATE FUNCTION bide._keep(p_senders text[], p_numbers bigint[], p_answers text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
BEGIN
  UPDATE answer AS a SET answers = s.answers
  FROM unnest(p_senders, p_numbers, p_answers) AS s(sender, number, answers)
  WHERE a.sender = s.sender AND a.number = s.number;
END $$;

-- The messages that a claim still holds, as `_claim` answers them.
CREATE FUNCTION bide._held(p_queue text, p_now bigint, p_token bigint, p_until bigint)
RETURNS TABLE (seq bigint, id text, is_json boolean, data bytea, due bigint, priority smallint,
               attempt integer, attempts integer, expires bigint, "group" text, headers text,
               failures text, planned bigint, asked bigint, created bigint, rule text, run text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = bide, pg_temp AS $$
#variable_conflict use_column
DECLARE
  q CONSTANT queue := _queue(p_queue);
BEGIN
  RETURN QUERY
    SELECT m.seq, m.id, m.is_json, m.data, m.due, m.priority, m.attempt + 1, m.attempts, m.expires,
           m."group", m.headers, m.failures, m.planned, m.asked, m.created, m.rule, m.run
    FROM message AS m
    WHERE queue = q.id AND state = LEASED_STATE AND state >= 0 AND rank = p_until AND token = p_token
      AND p_until > _moment(p_now)
    ORDER BY seq;
END $$;

-- Forget the batches that were followed by another one of the same sender, but not those of the last two
-- seconds: no statement that does not see the later batch yet runs for so long. And forget senders that
-- were not seen for SENDER_KEEP, and those beyond MAX_SENDERS of one owner.
CREATE FUNCTION bide._forget_answers() RETURNS void LANGUAGE sql VOLATILE AS $$
  DELETE FROM answer AS a USING (
    SELECT sender, max(number) AS number, max(seen) AS seen,
           row_number() OVER (PARTITION BY split_part(sender, ':', 1) ORDER BY max(seen) DESC) AS n
    FROM answer GROUP BY sender
  ) AS s
  WHERE a.sender = s.sender AND (s.n > MAX_SENDERS OR s.seen < _moment(NULL) - SENDER_KEEP
    OR a.number < s.number AND a.seen < _moment(NULL) - BATCH_KEEP)
$$;
