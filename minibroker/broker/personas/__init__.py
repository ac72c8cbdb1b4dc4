"""Personas: what brokers of other versions and makers serve and answer, as recorded facts."""
