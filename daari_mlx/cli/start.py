"""The console script: nothing is said about a Ctrl-C before a command runs, and after it has ended."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; ends the process with the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules are imported there is nothing to clean up or to tell
    from daari_mlx.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
