"""What a broker tells of itself, read by real clients, whoever is killed meanwhile."""
