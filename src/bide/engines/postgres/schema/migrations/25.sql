-- The last group that a claim of a limited queue has looked ahead at; empty: there were no more. See
-- bide.model.rank.
ALTER TABLE bide.limited ADD COLUMN looked text COLLATE "C" NOT NULL DEFAULT '';
