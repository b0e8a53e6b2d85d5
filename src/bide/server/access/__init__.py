"""Access: tokens, JWTs, rights, and the requests that are refused."""
