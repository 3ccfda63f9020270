"""Errors of a development broker; each message is one line that names the next command."""

from statehold.errors import StateholdError


class DevError(StateholdError):
    """Base of the development broker's errors."""


class NoCluster(DevError):
    """The directory holds no cluster."""


class JavaMissing(DevError):
    """No Java 17 or newer was found."""


class JarsUnavailable(DevError):
    """The jars are not in the cache, and a download failed."""


class JarsDamaged(DevError):
    """A jar differs from its recorded checksum."""


class InUse(DevError):
    """Another process holds a directory or a port."""


class BrokerFailed(DevError):
    """A broker did not start, or ended; the message names its log."""
