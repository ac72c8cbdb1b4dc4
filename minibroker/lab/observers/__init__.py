"""Watch the requests of a broker, and change them where a fault rule says so."""
