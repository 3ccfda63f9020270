"""A FastAPI application that books payments with a statehold service in the same process."""
