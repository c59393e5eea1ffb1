"""Ingress lines to batches: the service behind the ingress listener."""
