"""One adapter for each client library; see `system_tests.clients.model` for their interface."""
