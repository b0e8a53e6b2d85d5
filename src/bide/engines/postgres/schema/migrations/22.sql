-- What a message says stands in its row: a put writes one row less, and a claim looks up one less. What
-- is longer than some 2 kB is kept apart by PostgreSQL itself, and no claim copies it.
ALTER TABLE bide.message ADD COLUMN is_json boolean,  -- whether the body is JSON text, and not bytes
  ADD COLUMN data bytea,                              -- the body, byte for byte
  ADD COLUMN headers text;                            -- JSON object
UPDATE bide.message AS m SET is_json = c.is_json, data = c.data, headers = c.headers
FROM bide.content AS c WHERE c.seq = m.seq;
ALTER TABLE bide.message ALTER COLUMN is_json SET NOT NULL, ALTER COLUMN data SET NOT NULL;
DROP TABLE bide.content;
