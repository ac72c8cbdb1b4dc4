"""Verdicts on clients: rules of good behavior, judged from the journal of a broker."""
