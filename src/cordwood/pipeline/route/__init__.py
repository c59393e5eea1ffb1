"""Routing: the streaming query from the ingress topic to the routes."""
