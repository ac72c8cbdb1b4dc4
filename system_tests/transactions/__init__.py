"""Transactions with real client libraries, for both transaction versions."""
