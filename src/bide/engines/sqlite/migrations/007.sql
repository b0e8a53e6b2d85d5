-- Version 7. When each message was first put: empty for messages of older versions, 0 if an import does
-- not know.
ALTER TABLE bide_message ADD COLUMN created INTEGER;
