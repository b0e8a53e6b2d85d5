-- The last group that a claim of a limited queue has looked ahead at; empty: there were no more. See
-- bide.model.turns.
ALTER TABLE bide.limited ADD COLUMN looked text COLLATE "C" NOT NULL DEFAULT '';
