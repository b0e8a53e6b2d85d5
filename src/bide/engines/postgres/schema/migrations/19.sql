-- `put` takes `latest`, and `get` tells `created` and `successor`. To PostgreSQL those are other
-- functions, so the older ones are dropped. One that a view of the user's depends on cannot be: it gets
-- another name, by which the view goes on, and asks the new one.
DO $$
BEGIN
  DROP FUNCTION IF EXISTS bide.put(
    text, json, interval, timestamptz, text, integer, integer, interval, text, json, text);
EXCEPTION WHEN dependent_objects_still_exist THEN
  CREATE OR REPLACE FUNCTION bide.put(
    queue text, body json, delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    id text DEFAULT NULL, priority integer DEFAULT 0, attempts integer DEFAULT 10,
    expires interval DEFAULT NULL, "group" text DEFAULT NULL, headers json DEFAULT NULL,
    on_conflict text DEFAULT 'keep'
  ) RETURNS bide.outcome LANGUAGE sql AS $put$
    SELECT bide.put(queue, body, delay, at, id, priority, attempts, expires, "group", headers,
                    on_conflict)
  $put$;
  ALTER FUNCTION bide.put RENAME TO put_until_18;
END $$;

DO $$
BEGIN
  DROP FUNCTION IF EXISTS bide.get(text, text);
EXCEPTION WHEN dependent_objects_still_exist THEN
  CREATE OR REPLACE FUNCTION bide.get(queue text, id text)
  RETURNS TABLE (state text, due timestamptz, body json, bytes bytea, priority integer,
                 attempt integer, attempts integer, "group" text, headers json, failures json,
                 holder text, until timestamptz) LANGUAGE sql AS $get$
    SELECT g.state, g.due, g.body, g.bytes, g.priority, g.attempt, g.attempts, g."group", g.headers,
           g.failures, g.holder, g.until
    FROM bide.get(queue, id) AS g
  $get$;
  ALTER FUNCTION bide.get RENAME TO get_until_18;
END $$;
