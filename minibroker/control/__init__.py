"""The control API: a running broker seen and steered over HTTP.

Owns what HTTP clients may ask, how they ask it, and the description of both. Knows the broker
only through the ``Backend`` protocol, so that a fake stands in for it in tests. Every answer,
errors included, is JSON whose shape the OpenAPI description gives. Kafka has no such thing; the
nearest are its JMX beans and the admin tools.
"""
