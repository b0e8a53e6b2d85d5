"""A shop on SQLAlchemy whose queue is elsewhere: an outbox, made by Alembic."""
