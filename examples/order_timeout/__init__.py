"""Cancel an order that is not paid in time."""
