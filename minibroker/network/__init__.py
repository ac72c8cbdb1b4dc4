"""The roles that face clients: the acceptor hands sockets out, processors speak Kafka on them."""
