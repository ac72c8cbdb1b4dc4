"""Measurements of the broker, beside others that speak the same protocol."""
