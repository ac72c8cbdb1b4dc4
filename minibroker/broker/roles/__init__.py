"""The five roles of a broker's processes: acceptor, processor, I/O worker, controller, recorder."""
