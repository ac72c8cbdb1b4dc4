"""Limits of connections, seen from the other end of real sockets with many addresses."""
