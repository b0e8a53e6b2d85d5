-- When each message was first put: null for messages of older versions, 0 if an import does not know.
ALTER TABLE bide.message ADD COLUMN created bigint;
