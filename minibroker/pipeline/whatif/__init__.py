"""What would have happened under other quotas: replays of recorded activity."""
