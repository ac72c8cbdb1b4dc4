"""Real clients of a broker that misbehaves on request."""
