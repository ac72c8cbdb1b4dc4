"""The same requests to minibroker and to Apache Kafka, whose responses are compared."""
