"""placeholder"""

import argparse


def arguments(parser: argparse.ArgumentParser) -> None: ...
def main(options: argparse.Namespace) -> int:
    return 0
