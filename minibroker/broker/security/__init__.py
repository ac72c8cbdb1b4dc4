"""Authentication and authorization as pure rules, without sockets, clocks or randomness."""
