"""Looking at what stands on the topics: read only, without the service's code unless typed values are wanted."""
