"""Fetch jars with the Ivy that PySpark carries: the broker's, and those that let Spark read Kafka. Once per machine."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from statehold.dev.errors import JarsUnavailable
from statehold.dev.java import find_java

PYSPARK = "4.0.5"
PYSPARK_SHA256 = "a0d44b0e7faf0458ad83b7aa664e7ed8b96beed8a55d66ce3b0dfac2309dfca6"
WANTED = ("ivy-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "slf4j-api-")

IVY = """<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="statehold" module="wanted"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""

# Maven Central by Ivy's own default. For archives whose pom names a parent that nobody has published.
WITHOUT_POMS = """<ivysettings><settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

# kafka-tools-api holds the interfaces of the console tools; newer releases name it without publishing it.
BROKER = """    <dependency org="org.apache.kafka" name="kafka_2.13" rev={version} conf="default->master,runtime">
      <exclude org="org.apache.kafka" module="kafka-tools-api"/>
    </dependency>"""

ARCHIVE = """    <dependency org={org} name={name} rev={version} conf="default" transitive="false">
      <artifact name={name} type="tar.gz" ext="tar.gz" e:classifier={kind}/>
    </dependency>"""

# What the connector needs and PySpark does not bring, each without what it asks for in turn: PySpark has the rest.
COMPANIONS = (
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


def resolve(version: str, target: Path, work: Path, report: Callable[[str], object]) -> None:
    """Put the jars of Kafka `version` into `target`/libs and PySpark's log4j into `target`/logging.

    `work` is scratch space that the caller removes. Raises `JarsUnavailable`.
    """
    java = find_java()  # before any download: nobody likes to wait for an error
    logging = target / "logging"
    logging.mkdir()
    _collect_from_pyspark(logging, work, report)
    ivy = next(logging.glob("ivy-*.jar"))
    ivy = ivy.rename(work / ivy.name)
    report(f"fetching the jars of Kafka {version} (45 MB)")
    dependency = BROKER.format(version=quoteattr(version))
    _retrieve([java, "-jar", str(ivy)], dependency, target / "libs", work, f"Kafka {version}")
    if not list((target / "libs").glob("kafka_2.13-*.jar")):
        raise JarsUnavailable(f"there is no Kafka {version} to be had: name another with --kafka-version")


def resolve_connector(version: str, target: Path, work: Path, report: Callable[[str], object]) -> None:
    """Put Spark's Kafka connector `version` and its companions into `target`; `work` is scratch space.

    Raises `JarsUnavailable`.
    """
    java = find_java()
    tools = work / "tools"
    tools.mkdir()
    _collect_from_pyspark(tools, work, report)
    report(f"fetching Spark's Kafka connector {version} (10 MB)")
    names = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13")
    wanted = [("org.apache.spark", name, version) for name in names] + list(COMPANIONS)
    rows = (
        f"    <dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(rev)}"
        ' conf="default->master" transitive="false"/>'
        for org, name, rev in wanted
    )
    ivy = next(tools.glob("ivy-*.jar"))
    _retrieve([java, "-jar", str(ivy)], "\n".join(rows), target, work, f"Spark's Kafka connector {version}")


def resolve_tools(version: str, target: Path, work: Path, report: Callable[[str], object]) -> None:
    """Put Kafka's command-line tools `version`, and what the one for transactions needs, into `target`.

    A version whose tools are published; it talks to brokers of other versions, too. Raises `JarsUnavailable`.
    """
    java = find_java()
    tools = work / "tools"
    tools.mkdir()
    _collect_from_pyspark(tools, work, report)
    report(f"fetching Kafka's tools {version} (11 MB)")
    kafka = [("org.apache.kafka", f"kafka-{name}", version) for name in ("tools", "clients", "server-common")]
    wanted = [
        *kafka,
        ("net.sourceforge.argparse4j", "argparse4j", "0.7.0"),
        ("net.sf.jopt-simple", "jopt-simple", "5.0.4"),
        ("org.slf4j", "slf4j-api", "1.7.36"),
    ]
    rows = (
        f"    <dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(rev)}"
        ' conf="default->master" transitive="false"/>'
        for org, name, rev in wanted
    )
    ivy = next(tools.glob("ivy-*.jar"))
    _retrieve([java, "-jar", str(ivy)], "\n".join(rows), target, work, f"Kafka's tools {version}")


def retrieve_archive(org: str, name: str, version: str, kind: str, work: Path) -> Path:
    """Fetch a .tar.gz that lies beside the jars of a release; unchecked. Raises `JarsUnavailable`."""
    java, tools = find_java(), work / "tools"
    tools.mkdir()
    _collect_from_pyspark(tools, work, lambda _: None)
    wanted = ARCHIVE.format(org=quoteattr(org), name=quoteattr(name), version=quoteattr(version), kind=quoteattr(kind))
    settings = work / "settings.xml"
    settings.write_text(WITHOUT_POMS, encoding="ascii")
    ivy = [java, "-jar", str(next(tools.glob("ivy-*.jar"))), "-settings", str(settings)]
    _retrieve(ivy, wanted, work, work, f"{name} {version}")
    return next(work.glob(f"{name}-*.tar.gz"))


def _retrieve(ivy: list[str], dependencies: str, target: Path, work: Path, what: str) -> None:
    module = work / "ivy.xml"
    module.write_text(IVY.format(dependencies=dependencies), encoding="utf-8")
    command = [ivy[0], f"-Divy.default.ivy.user.dir={work}/ivy", *ivy[1:], "-ivy", str(module)]
    command += ["-cache", f"{work}/cache", "-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", f"{target}/[artifact]-[revision].[ext]"]
    _run(command, what)


def _collect_from_pyspark(target: Path, work: Path, report: Callable[[str], object]) -> None:
    installed = importlib.util.find_spec("pyspark")
    folder = Path(installed.origin).parent / "jars" if installed and installed.origin else None
    if folder and folder.is_dir():
        for jar in folder.glob("*.jar"):
            if jar.name.startswith(WANTED):
                shutil.copyfile(jar, target / jar.name)
    else:
        extract(_download_pyspark(work, report), target)


def _download_pyspark(work: Path, report: Callable[[str], object]) -> Path:
    """The archive is fetched, not installed: five of its jars are needed, and building it costs a minute."""
    if importlib.util.find_spec("pip") is None:
        raise JarsUnavailable("the broker's jars are fetched with PySpark's Ivy: pip install 'statehold[dev]'")
    report(f"fetching PySpark {PYSPARK} for the Ivy inside it (434 MB, once)")
    pinned = work / "pyspark.txt"
    pinned.write_text(f"pyspark=={PYSPARK} --hash=sha256:{PYSPARK_SHA256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "pyspark"]
    command += ["--require-hashes", "--no-build-isolation", "--dest", str(work), "--requirement", str(pinned)]
    _run(command, f"PySpark {PYSPARK}")
    return next(work.glob("pyspark-*.tar.gz"))


def extract(archive: Path, target: Path) -> None:
    """Copy the wanted jars out of PySpark's archive, in one pass and without unpacking the rest."""
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name)
            if name.parent.name == "jars" and name.name.startswith(WANTED):
                source = tar.extractfile(member)
                if source is None:
                    continue
                with (target / name.name).open("wb") as sink:
                    shutil.copyfileobj(source, sink)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        told = [line for line in lines if "ERROR" in line or "not found" in line or "refused" in line]
        reason = (told or lines or ["no word why"])[-1][:200]
        raise JarsUnavailable(f"cannot fetch {what}: is there such a version, and a network? ({reason})")
