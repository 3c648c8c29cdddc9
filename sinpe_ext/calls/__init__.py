"""From what a user gives to one operator's arguments: put in canonical form, checked once."""
