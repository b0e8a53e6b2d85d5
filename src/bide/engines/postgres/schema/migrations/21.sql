ALTER TABLE bide.message ADD COLUMN asked bigint;  -- the due time asked for, where a revival has moved it
