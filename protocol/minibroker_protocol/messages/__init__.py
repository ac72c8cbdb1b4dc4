"""The messages of Kafka's protocol, one module for each API with its request and response.

Import an API's module for its classes, or find them with `minibroker_protocol.registry.schema`;
importing this package loads none of them.
"""
