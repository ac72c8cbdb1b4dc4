"""What a broker tells of its requests and connections, for whoever reads it later."""
