"""Commands of an upgrade: rehearse a release, shadow the running one, finish."""
