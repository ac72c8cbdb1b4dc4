"""HTTP API to inspect and control a running broker.

Owns the operations, the HTTP server and their OpenAPI description. Uses the broker only through the
``Backend`` protocol, which tests replace by a fake. Every response, including errors, is JSON with
a schema in the OpenAPI description. Kafka has no counterpart; its JMX beans and admin tools come
closest.
"""
