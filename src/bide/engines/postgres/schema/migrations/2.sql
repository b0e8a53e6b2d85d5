-- `message.seq` is from now on the number of the put * 2^20 + the number of the message in it.

-- Whether a message was ever remembered after its end.
ALTER TABLE bide.queue ADD COLUMN remembers boolean NOT NULL DEFAULT false;
UPDATE bide.queue AS q SET remembers = keep > 0 OR EXISTS (
  SELECT FROM bide.message WHERE queue = q.id AND state BETWEEN 4 AND 5);
