-- Plans that do not depend on statistics. A session plans each statement once, perhaps while the tables
-- are empty or have never been analysed, and keeps the plan: so only one way is left to the planner,
-- which is by an index. Also that a message by its id is found by no other index than that of ids: the
-- one of ranks has a condition that only queries by rank have, `state >= 0`.
--
-- Not for what reads all messages of a queue; nor for what has one way only, because each setting costs
-- time at every call. Without `jit`: up to version 17 the price of what is off, where nothing else is
-- left, makes it worth while in the server's eyes to compile each statement.
DO $$
DECLARE
  planned regprocedure;
BEGIN
  FOR planned IN
    SELECT oid FROM pg_proc
    WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema()) AND prosecdef
      AND proname LIKE '\_%' AND proname <> '_put_one'
  LOOP
    EXECUTE format(
      'ALTER FUNCTION %s SET plan_cache_mode = force_generic_plan SET enable_seqscan = off '
      'SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off '
      'SET enable_mergejoin = off SET jit = off', planned);
  END LOOP;
END $$;
