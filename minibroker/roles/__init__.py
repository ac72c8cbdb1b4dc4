"""What every role has: its place in the house, and its tie to the controller."""
