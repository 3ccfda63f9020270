"""What is wrong with a cluster, a service's topics or this machine, before it is felt: `statehold doctor`."""
