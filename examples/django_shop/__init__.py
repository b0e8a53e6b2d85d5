"""A shop on Django whose unpaid orders are cancelled."""
