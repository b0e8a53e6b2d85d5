-- Version 4. The names of the tables begin with bide_, so that they may stand in the file of an
-- application; and the version is kept here, since `user_version` belongs to the application.
ALTER TABLE bide_store ADD COLUMN version INTEGER NOT NULL DEFAULT 4;
