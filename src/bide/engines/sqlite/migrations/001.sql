-- Version 1. A table of records and the ordered sets that messages move between.
-- Moments are Unix milliseconds. States: 0 delayed, 1 ready, 2 leased, 3 dead, 4 acked, 5 expired.

-- One row a queue: its settings, and counters that move in the transaction of the messages.
CREATE TABLE bide_queue (
  id        INTEGER PRIMARY KEY,
  name      TEXT    NOT NULL UNIQUE,
  paused    INTEGER NOT NULL DEFAULT 0,
  keep      INTEGER NOT NULL DEFAULT 0,  -- for how long acked messages are remembered
  weighted  INTEGER NOT NULL DEFAULT 0,  -- whether a priority other than 0 was ever used
  token     INTEGER NOT NULL,            -- the number of the last claim
  delayed   INTEGER NOT NULL DEFAULT 0,
  ready     INTEGER NOT NULL DEFAULT 0,
  leased    INTEGER NOT NULL DEFAULT 0,
  dead      INTEGER NOT NULL DEFAULT 0,
  kept      INTEGER NOT NULL DEFAULT 0,
  put       INTEGER NOT NULL DEFAULT 0,
  acked     INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0,
  expired   INTEGER NOT NULL DEFAULT 0,
  purged    INTEGER NOT NULL DEFAULT 0,
  died      INTEGER NOT NULL DEFAULT 0,
  revived   INTEGER NOT NULL DEFAULT 0,
  retried   INTEGER NOT NULL DEFAULT 0,
  lapsed    INTEGER NOT NULL DEFAULT 0
);

-- One row: up to which message the counters above have counted. Only puts of a single message add
-- some after it, so that such a put writes one page less; whoever changes a queue next counts them.
CREATE TABLE bide_store (
  counted INTEGER NOT NULL
);
INSERT INTO bide_store VALUES (0);

-- What a message is. A claim reads this row and writes none: with due times at random each message
-- is a page of its own, and pages written are what a batch costs.
CREATE TABLE bide_message (
  seq      INTEGER PRIMARY KEY,
  queue    INTEGER NOT NULL,
  id       TEXT    NOT NULL,
  due      INTEGER NOT NULL,
  priority INTEGER NOT NULL,
  attempt  INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  expires  INTEGER,           -- milliseconds after due
  "group"  TEXT,
  headers  TEXT,              -- JSON object
  failures TEXT,              -- JSON array of [attempt, moment, holder, reason]
  data              NOT NULL  -- TEXT: JSON; BLOB: bytes of the user's own
);
CREATE UNIQUE INDEX bide_message_id ON bide_message (queue, id);
CREATE INDEX bide_message_group ON bide_message (queue, "group") WHERE "group" IS NOT NULL;

-- Delayed and ready messages by rank. Both ranks follow from due and priority, so that a message is
-- found here without being told where it stands.
CREATE TABLE bide_pending (
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  rank  INTEGER NOT NULL,
  seq   INTEGER NOT NULL,
  PRIMARY KEY (queue, state, rank, seq)
) WITHOUT ROWID;

-- Leased messages: few at a time, whatever is pending.
CREATE TABLE bide_lease (
  seq    INTEGER PRIMARY KEY,
  queue  INTEGER NOT NULL,
  token  INTEGER NOT NULL,
  until  INTEGER NOT NULL,
  holder TEXT    NOT NULL
);
CREATE INDEX bide_lease_until ON bide_lease (queue, until);

-- Messages set aside: dead letters, and what is remembered of acked and expired ones.
CREATE TABLE bide_aside (
  seq   INTEGER PRIMARY KEY,
  queue INTEGER NOT NULL,
  state INTEGER NOT NULL,
  ended INTEGER NOT NULL
);
CREATE INDEX bide_aside_ended ON bide_aside (queue, state, ended);
