-- The rows of outboxes whose commands were executed, until they are deleted there; see
-- bide.model.origin.
CREATE TABLE bide.forwarded (
  queue  text COLLATE "C" NOT NULL,
  outbox text COLLATE "C" NOT NULL,
  name   text COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, outbox, name)
);
