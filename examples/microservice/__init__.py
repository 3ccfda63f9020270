"""A FastAPI application that counts page visits with a statehold service in the same process."""
