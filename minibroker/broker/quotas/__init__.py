"""Quotas: rates, and the throttle times of clients that exceed them (KIP-124)."""
