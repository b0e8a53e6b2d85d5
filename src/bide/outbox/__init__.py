"""The outbox: commands that wait in the user's own database until the store has them."""
