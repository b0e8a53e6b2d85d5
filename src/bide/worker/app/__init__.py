"""The app: handlers, jobs, sources and schedules."""
