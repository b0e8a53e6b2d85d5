-- Version 12. The rows of outboxes whose commands were executed, until they are deleted there; see
-- bide.model.command_parts.
CREATE TABLE bide_forwarded (
  queue  INTEGER NOT NULL,
  outbox TEXT    NOT NULL,
  row    TEXT    NOT NULL,
  PRIMARY KEY (queue, outbox, row)
) WITHOUT ROWID;
