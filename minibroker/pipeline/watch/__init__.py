"""Alerts while it happens: quotas that are nearly used up, throttles, neighbours, lost events."""
