-- What queues remember of messages that have ended, if they do: an end of an id is a row, and an id may
-- have several. `how` is a place in ENDINGS of bide.model.ended. Times are milliseconds.
CREATE TABLE bide.ended (
  seq      bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  moment   bigint   NOT NULL,
  due      bigint   NOT NULL,
  since    bigint,
  queue    integer  NOT NULL,
  attempt  integer  NOT NULL,
  how      smallint NOT NULL,
  id       text COLLATE "C" NOT NULL,
  by       text,
  failures text,  -- as in `message`
  result   text   -- JSON
);
CREATE INDEX ended_id ON bide.ended (queue, id, seq);
CREATE INDEX ended_moment ON bide.ended (queue, moment);
ALTER TABLE bide.queue ADD COLUMN history bigint NOT NULL DEFAULT 0,
  ADD COLUMN result_ttl bigint NOT NULL DEFAULT 0,
  ADD COLUMN ends boolean NOT NULL DEFAULT false;  -- whether it ever remembered any

-- For `_within`.
ALTER TYPE bide._asked ADD ATTRIBUTE actor text, ADD ATTRIBUTE history bigint,
  ADD ATTRIBUTE result_ttl bigint;
