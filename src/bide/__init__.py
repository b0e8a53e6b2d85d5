"""bide: a delay queue. Messages that bide their time."""
