"""A web application that counts visits to pages: FastAPI in front, a statehold service inside."""
