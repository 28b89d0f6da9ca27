"""Sandboxes that live on between programs: access to them, and what can be done in them."""
