"""HTTP API to inspect and control a running broker.

Owns the features, the HTTP server and their OpenAPI description. A feature is one file: the records
of its requests and responses, and its operations, which ``operations`` joins. The
launcher attaches it to the controller role with ``attach_control``. Every response,
including errors, is JSON with a schema in the OpenAPI description. Kafka has no counterpart; its
JMX beans and admin tools come closest.
"""
