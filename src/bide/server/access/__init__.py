"""Who may do what: tokens, JWTs, rights, and requests that are not answered."""
