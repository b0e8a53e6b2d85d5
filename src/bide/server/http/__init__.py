"""HTTP/1.1 on a socket: connections, TLS, requests, answers, and where clients come from."""
