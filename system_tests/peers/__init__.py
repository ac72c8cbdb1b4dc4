"""The same questions to minibroker and to Apache Kafka, whose answers are compared."""
