"""Measurements of the broker and of others that speak the same protocol."""
