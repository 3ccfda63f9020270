"""Typed settings and the client configurations made from them."""
