-- The shortest lease that was ever given in a queue, in milliseconds: claims need not look for leases
-- that end sooner.
ALTER TABLE bide.queue ADD COLUMN lease bigint;
