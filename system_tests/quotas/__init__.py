"""Quotas of users and clients on whole brokers: processes, sockets, and clients that people use."""
