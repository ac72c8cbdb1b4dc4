"""Who somebody is and what they may do: rules alone, without sockets, clocks or chance."""
