"""A payment service with failure policies, and a service that reads its dead letters."""
