"""Who may ask for what: a guard before each API, which alone knows operations and resources."""
