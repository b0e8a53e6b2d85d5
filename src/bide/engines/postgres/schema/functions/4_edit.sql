-- Change what is named of messages that nobody holds, dead letters included. What is null stays, as
-- does what `p_set` does not name of expires, group and headers, which null takes away. With a due
-- time, only delayed and ready messages are changed. Answers as `_change` does.
CREATE FUNCTION bide._edit(
  p_queue text, p_now bigint, p_ids text[], p_set text[], p_data bytea, p_is_json boolean,
  p_priority integer, p_attempts integer, p_expires bigint, p_group text, p_headers text,
  p_at bigint, p_delay bigint, p_only_seqs bigint[]
) RETURNS TABLE (number bigint, done boolean, state smallint, due bigint, until bigint, holder text,
                 place bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
DECLARE
  began CONSTANT xid8 := pg_current_xact_id();  -- before the clock is read: see `_claim`
  moment CONSTANT bigint := _moment(p_now);
  q CONSTANT queue := _open(p_queue, moment);
  new_due CONSTANT bigint := coalesce(p_at, moment + p_delay);
  moves tally[] := '{}';
  dues bigint[] := '{}';
  wanted record;
  was message;
  new message;
BEGIN
  IF p_priority > 0 THEN
    UPDATE queue SET weighted = true WHERE id = q.id AND NOT weighted;
  END IF;
  FOR wanted IN
    SELECT * FROM unnest(p_ids) WITH ORDINALITY AS w(id, n) ORDER BY id COLLATE "C", n
  LOOP
    was := _locked(q.id, wanted.id);
    CONTINUE WHEN was.seq IS NULL;
    IF was.state = 2 AND was.rank <= moment THEN
      new := _lapse(was, moment);
      moves := moves || _moved(was, new, 'lapsed', moment);
      was := new;
    END IF;
    number := wanted.n;
    done := (was.state < 2 OR was.state = 3 AND new_due IS NULL
             -- One that a move or import has under way is refused: the change would be lost.
             AND coalesce(was.failures, '') !~ '"in transit by bide [^"]*"[^"]*\]\]$')
      AND (p_only_seqs IS NULL OR was.seq = ANY (p_only_seqs));
    new := was;
    IF done THEN
      IF new_due IS NOT NULL THEN
        new.state := 0;
        new.due := new_due;
        new.planned := NULL;
        new.asked := NULL;
        new.expires := was.expires + was.due - coalesce(was.planned, was.due);
      END IF;
      IF 'expires' = ANY (p_set) THEN  -- a retry keeps the time at which it expires
        new.expires := p_expires - (new.due - coalesce(new.planned, new.due));
      END IF;
      IF 'group' = ANY (p_set) THEN
        new."group" := p_group;
      END IF;
      new.priority := coalesce(p_priority, was.priority);
      new.attempts := coalesce(p_attempts, was.attempts);
      IF new.state < 2 THEN
        new.rank := _rank(new.state, new.due, new.priority);
        moves := moves || _moved(was, new, NULL);
        dues := dues || new.due;
      END IF;
      new.data := coalesce(p_data, was.data);
      new.is_json := coalesce(p_is_json, was.is_json);
      IF 'headers' = ANY (p_set) THEN
        new.headers := p_headers;
      END IF;
      IF was.limited IS NOT NULL AND new.state = 1
         AND (new.priority, new."group") IS DISTINCT FROM (was.priority, was."group") THEN
        PERFORM _note_limits(was, new, moment);
      END IF;
      UPDATE message SET state = new.state, rank = new.rank, due = new.due, expires = new.expires,
        planned = new.planned, asked = new.asked, priority = new.priority, attempts = new.attempts,
        "group" = new."group", is_json = new.is_json, data = new.data, headers = new.headers,
        size = _size(id, new.data, new.headers)
      WHERE queue = q.id AND id = was.id;
    END IF;
    SELECT * INTO state, due, until, holder FROM _stands(new, moment);
    place := CASE WHEN done THEN pg_current_wal_insert_lsn() - '0/0' END;
    RETURN NEXT;
  END LOOP;
  PERFORM _count_moves(moves);
  PERFORM _lower(q.id, moment, dues) WHERE q.id IS NOT NULL;
END $$;
