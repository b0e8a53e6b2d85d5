"""A shop on Celery whose delayed tasks wait in bide."""
