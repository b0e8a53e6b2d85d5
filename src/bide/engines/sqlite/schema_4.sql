-- Version 4: who has asked the holder of a lease to stop, empty if that one gave no name; and the last report
-- of the holder, a Progress of bide.model.message as JSON.
ALTER TABLE bide_lease ADD COLUMN stopping TEXT;
ALTER TABLE bide_lease ADD COLUMN progress TEXT;
