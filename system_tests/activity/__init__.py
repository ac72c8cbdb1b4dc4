"""Activity of a broker, read by real clients, with kills."""
