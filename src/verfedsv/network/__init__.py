"""A training between organisations: one server, clients that dial in, mutual TLS. It needs the extra `net`."""
