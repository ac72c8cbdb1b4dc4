"""What all processes of a broker share: environment, messages, and the client of the controller."""
