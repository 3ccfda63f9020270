"""The checks of `statehold doctor`: a cluster, a service's topics and this machine."""
