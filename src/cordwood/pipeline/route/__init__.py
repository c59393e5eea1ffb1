"""Routing: the streaming query from the ingress topic to the routes."""

from cordwood.pipeline.route.query import RouteQuery, plan_route

__all__ = ["RouteQuery", "plan_route"]
