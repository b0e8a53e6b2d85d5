-- The rows of outboxes whose commands were executed, until they are deleted there; see
-- bide.model.command_parts.
CREATE TABLE bide.forwarded (
  queue  text COLLATE "C" NOT NULL,
  outbox text COLLATE "C" NOT NULL,
  name   text COLLATE "C" NOT NULL,
  PRIMARY KEY (queue, outbox, name)
);
