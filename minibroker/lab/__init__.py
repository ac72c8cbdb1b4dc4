"""What testers do with a broker: watch it, break it on request, and judge its clients."""
