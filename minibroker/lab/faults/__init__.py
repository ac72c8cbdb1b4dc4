"""Faults on request: rules that select requests and connections and say what goes wrong."""
