-- Only queries by rank can use this index, whatever the planner believes of the table: see `8_planning.sql`.
DROP INDEX bide.message_rank;
CREATE INDEX message_rank ON bide.message (queue, state, rank, seq) WHERE state >= 0;
