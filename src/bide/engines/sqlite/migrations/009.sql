-- Version 9. The successors of leased messages: what puts with `latest` have stored meanwhile, which takes
-- the place of the message when its lease ends. Columns as in bide_message.
CREATE TABLE bide_successor (
  queue    INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  due      INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  expires  INTEGER,
  "group"  TEXT,
  headers  TEXT,
  data              NOT NULL,
  created  INTEGER NOT NULL,
  PRIMARY KEY (queue, id)
);
ALTER TABLE bide_queue ADD COLUMN successors INTEGER NOT NULL DEFAULT 0;  -- how many rows it has there
