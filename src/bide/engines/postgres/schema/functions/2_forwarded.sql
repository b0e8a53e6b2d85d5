-- Commands from an outbox: each row is executed once.

-- Before a command: remember its rows, and answer those that were remembered. First forget those of the
-- outbox whose names are smaller than `p_before`. Another transaction that remembers the same row is
-- waited for.
CREATE FUNCTION bide._forward(p_queue text, p_now bigint, p_outbox text, p_rows text[], p_before text)
RETURNS TABLE (name text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
#variable_conflict use_column
BEGIN
  PERFORM _check_access(p_queue);
  LOCK TABLE tally IN ROW EXCLUSIVE MODE;  -- see `_open`
  PERFORM _open(p_queue, _moment(p_now));  -- it forgets, as for each command
  DELETE FROM forwarded WHERE queue = p_queue AND outbox = p_outbox AND name < p_before;
  RETURN QUERY
    WITH new AS (
      INSERT INTO forwarded
      SELECT p_queue, p_outbox, r FROM unnest(p_rows) AS r ORDER BY r COLLATE "C"
      ON CONFLICT DO NOTHING RETURNING name
    )
    SELECT r FROM unnest(p_rows) AS r EXCEPT SELECT name FROM new;
END $$;

-- After it: forget the rows for which nothing was done, and all but the last `p_most` of the queue.
CREATE FUNCTION bide._forwarded(p_queue text, p_outbox text, p_undone text[], p_most bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = bide, pg_temp SET lock_timeout = '250ms' AS $$
BEGIN
  PERFORM _check_access(p_queue);
  DELETE FROM forwarded WHERE queue = p_queue AND outbox = p_outbox AND name = ANY (p_undone);
  DELETE FROM forwarded WHERE queue = p_queue AND (outbox, name) <= (
    SELECT f.outbox, f.name FROM forwarded AS f WHERE f.queue = p_queue
    ORDER BY f.outbox DESC, f.name DESC LIMIT 1 OFFSET p_most);
END $$;
