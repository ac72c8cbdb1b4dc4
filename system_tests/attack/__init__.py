"""A standing attack on running brokers, with honest clients and checkers."""
