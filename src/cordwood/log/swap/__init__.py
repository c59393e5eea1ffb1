"""The swap ladder: staged segments replace live ones, whole, once, and resumable at every rung."""
