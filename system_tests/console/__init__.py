"""The console page in a real browser: its rules one by one, and whole in front of a broker."""
