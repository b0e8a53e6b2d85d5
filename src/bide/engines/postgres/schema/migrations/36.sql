-- What tells rows apart where a publication for logical replication has all tables of the database: without
-- it no row can be changed or deleted then. It costs nothing elsewhere.
ALTER TABLE bide.message REPLICA IDENTITY USING INDEX message_queue_id_key;
ALTER TABLE bide.store REPLICA IDENTITY FULL;
ALTER TABLE bide.tally REPLICA IDENTITY FULL;
ALTER TABLE bide.lowered REPLICA IDENTITY FULL;
ALTER TABLE bide.lease_end REPLICA IDENTITY FULL;
