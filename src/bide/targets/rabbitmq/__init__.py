"""RabbitMQ: a target of subscriptions, and an intake of delayed messages (`bide[rabbitmq]`)."""
