-- Version 7: messages that repeat, see bide.model.repeat: by which rule, and which run it is. Both are texts
-- that no statement reads.
ALTER TABLE bide_message ADD COLUMN rule TEXT;
ALTER TABLE bide_message ADD COLUMN run TEXT;
