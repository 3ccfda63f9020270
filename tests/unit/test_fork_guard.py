"""The guard of threads that run a handler, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run(code: str) -> list[str]:
    """What a new process prints."""
    before = """
        import os, posix, pty, subprocess, threading
        from statehold.errors import UsageError
        from statehold.health.fork_guard import no_fork

        def tried(fork):
            try:
                child = fork()
            except UsageError as error:
                return str(error).split(":")[0]
            if child == 0:
                os._exit(5)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    """
    whole = textwrap.dedent(before) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_every_function_that_forks_is_rejected_while_the_thread_is_guarded() -> None:
    assert run("""
        print(tried(os.fork))
        with no_fork():
            print(tried(os.fork))
            print(tried(lambda: pty.fork()[0]))
            print(tried(posix.fork))
        print(tried(os.fork), tried(posix.fork))
    """) == ["5", "os.fork() in a handler", "os.forkpty() in a handler", "70", "5 5"]


def test_another_thread_may_fork_and_its_child_too() -> None:
    assert run("""
        ready, done = threading.Event(), threading.Event()

        def guarded():
            with no_fork():
                ready.set()
                done.wait()

        thread = threading.Thread(target=guarded)
        thread.start()
        ready.wait()
        print(tried(os.fork), tried(lambda: os.fork() or os._exit(tried(os.fork))))
        done.set()
    """) == ["5 5"]


def test_subprocess_works_with_and_without_a_function_before_the_program() -> None:
    assert run("""
        with no_fork():
            print(subprocess.run(["true"], preexec_fn=os.getpid).returncode)
            print(subprocess.run(["echo", "said"], capture_output=True, text=True).stdout.strip())
            print(os.system("true"))
    """) == ["0", "said", "0"]
