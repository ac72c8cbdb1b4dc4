"""Histories of real clients on real brokers, checked for anomalies."""
