-- What a put with `latest` has stored while the message was leased, for the time when the lease ends: JSON,
-- with the body in base64. Null for most messages.
ALTER TABLE bide.message ADD COLUMN successor text;

-- For `_within`.
ALTER TYPE bide._asked ADD ATTRIBUTE latest bigint[];
