"""Where subscriptions send due messages."""
