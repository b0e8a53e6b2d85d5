-- Vacuum at full speed: with the default delay it clears fewer pages than a busy worker fills.
ALTER TABLE bide.message SET (autovacuum_vacuum_cost_delay = 0);
