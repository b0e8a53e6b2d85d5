"""A shop as a FastAPI application, with its worker in the same process."""
