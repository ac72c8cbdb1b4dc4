"""Replay of captures: recorded requests to a broker, or recorded responses to clients."""
