"""A shop on Flask and Flask-SQLAlchemy, whose queue is in its own database."""
