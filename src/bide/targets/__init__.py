"""Where subscriptions send due messages, and how messages come in from elsewhere."""
