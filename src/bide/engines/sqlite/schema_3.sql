-- Version 3: what is remembered of the senders of commands that may be sent again; see
-- bide.engines.repetition. `owner` and `name` are the parts of Identity.sender.
CREATE TABLE bide_sender (
  seq     INTEGER PRIMARY KEY,
  owner   TEXT    NOT NULL,
  name    TEXT    NOT NULL,
  number  INTEGER NOT NULL,  -- of the last batch
  moment  INTEGER NOT NULL,  -- when one was executed last, or up to a minute earlier
  answers BLOB    NOT NULL,  -- of the last batch, by the place of the command, in msgpack
  UNIQUE (owner, name)
);
CREATE INDEX bide_sender_age ON bide_sender (owner, moment);
CREATE INDEX bide_sender_moment ON bide_sender (moment);
