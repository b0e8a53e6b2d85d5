"""Observability: tallies of deliveries, Prometheus metrics, OpenTelemetry spans, logs, heartbeats.

These modules, and the optional libraries, are imported only when they are used.
"""
