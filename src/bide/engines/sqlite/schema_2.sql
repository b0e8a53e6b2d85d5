-- Version 2: the last returns of messages to an earlier set, or to an earlier place in it, for scans that are
-- under way; see `goes_by_set` in bide.engines.cursor. No number is left out.
CREATE TABLE bide_return (
  number INTEGER PRIMARY KEY,
  seq    INTEGER NOT NULL
);
