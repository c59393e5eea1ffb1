"""The service behind the ingress listener: encodes lines as record batches and appends them."""
