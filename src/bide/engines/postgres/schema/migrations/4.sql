-- Ranks below which claims would not look, at which delayed messages were put nevertheless: those
-- whose due time was past already.
CREATE TABLE bide.lowered (
  queue integer NOT NULL,
  rank  bigint  NOT NULL
);
