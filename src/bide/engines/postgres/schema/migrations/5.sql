-- Since when a worker holds a message, and how often it has extended the lease; and the last pauses of
-- each queue. `since` is null for leases of older versions, `until` while the pause lasts.
ALTER TABLE bide.message ADD COLUMN since bigint, ADD COLUMN extended integer;

CREATE TABLE bide.pause (
  seq   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  queue integer NOT NULL,
  since bigint  NOT NULL,
  until bigint,
  actor text
);
