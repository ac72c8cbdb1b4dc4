"""Activity: records of a broker's requests and connections."""
