-- For `_within`.

-- A command as Python sends it: what it has not is null. Of a put, arrays as `_put` takes them, the
-- first due time and the shortest delay.
CREATE TYPE bide._asked AS (
  verb text, queue text, ids text[], is_json boolean[], data bytea[], at bigint[], delay bigint[],
  priority bigint[], attempts bigint[], expires bigint[], groups text[], headers text[],
  new_due bigint, new_delay bigint, if_due bigint, of_group text, after bigint, before bigint,
  keep bigint
);
CREATE TYPE bide._asked_all AS (database text, now bigint, commands bide._asked[]);
