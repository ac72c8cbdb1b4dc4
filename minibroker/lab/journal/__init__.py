"""The journal: what happened in a broker, in one order."""
