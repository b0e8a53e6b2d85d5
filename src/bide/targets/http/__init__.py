"""Push: subscriptions send due messages to a URL, signed as Standard Webhooks (`bide[server]`)."""
