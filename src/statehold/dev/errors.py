"""What can go wrong with a development broker; each message is one line that names the next command."""

from statehold.errors import StateholdError


class DevError(StateholdError):
    """Base of the development broker's errors."""


class NoCluster(DevError):
    """The directory holds none."""


class JavaMissing(DevError):
    """There is no Java 17 or newer."""


class JarsUnavailable(DevError):
    """The broker's jars are neither in the cache nor to be fetched."""


class JarsDamaged(DevError):
    """A jar differs from its recorded checksum."""


class InUse(DevError):
    """A directory or a port is held by somebody else."""


class BrokerFailed(DevError):
    """A broker did not start, or died; the message names its log."""
