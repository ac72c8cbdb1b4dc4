"""Alerts on live activity: quotas nearly used up, throttles, noisy neighbours, lost events."""
