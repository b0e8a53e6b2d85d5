-- Version 13. The last group that a claim of a limited queue has looked ahead at; empty: there were no
-- more. See bide.model.rank.
ALTER TABLE bide_limit ADD COLUMN looked TEXT NOT NULL DEFAULT '';
