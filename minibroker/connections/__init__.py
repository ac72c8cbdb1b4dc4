"""Connection limits: how many connections there may be, and how fast new ones may come."""
