"""Client connections: framing, TLS, SASL, requests, responses and their quotas."""
