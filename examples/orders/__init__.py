"""Orders joined with their customers by foreign key."""
