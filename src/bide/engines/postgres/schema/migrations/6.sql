-- Version 6: closed groups, see bide.engines.rules.closing.
ALTER TABLE bide.queue ADD COLUMN closes boolean NOT NULL DEFAULT false;  -- whether a group was ever closed

CREATE TABLE bide.closed (
  queue   integer NOT NULL,
  "group" text COLLATE "C" NOT NULL,
  until   bigint  NOT NULL,  -- when it opens again
  PRIMARY KEY (queue, "group")
);
CREATE INDEX closed_until ON bide.closed (queue, until, "group");

ALTER TYPE bide._head ADD ATTRIBUTE shut boolean;
