"""From the user's arguments to those of an operator: checked once, and brought to canonical form."""
