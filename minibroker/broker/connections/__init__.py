"""Limits of the number of connections and of the rate of new ones, as pure rules."""
