"""What becomes of activity: ways from a broker, or from generated events, to an answer."""
