"""Admission of connections: everything between ``accept()`` and a processor's queue."""
