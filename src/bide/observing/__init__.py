"""What people watch: tallies of deliveries, Prometheus metrics, OpenTelemetry spans.

Nothing here is imported before it is asked for, and the optional libraries are only needed then.
"""
