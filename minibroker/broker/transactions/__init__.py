"""Transaction coordinator: producer ids and epochs, states of transactions, and their log."""
