"""Real brokers of older versions, requests to them, and the personas made of their responses."""
