"""Telling people outside: webhooks, and the relay that empties the outbox into them."""
