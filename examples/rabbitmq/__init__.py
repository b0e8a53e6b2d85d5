"""Delays for RabbitMQ: a shop that publishes with a delay, and four ways to delay, measured."""
