"""What would have happened under other quotas: recorded activity, replayed."""
