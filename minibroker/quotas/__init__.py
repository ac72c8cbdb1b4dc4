"""Quotas: how rates are measured, and how long who exceeds one must wait (KIP-124)."""
