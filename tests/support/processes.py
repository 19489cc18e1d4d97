"""Processes of their own that start within milliseconds.

They fork from a server that has imported what they use. There is one server for all tests, so its imports are
named once. A process that is killed at a random instant dies in the code that is tested, not in an import.
"""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "skipinit.cli.app",
        "skipinit.data.images",
        "skipinit.paper.reproduce",
        "skipinit.reporting.page",
        "skipinit.sweeping.engine",
        "skipinit.sweeping.single",
        "torch._dynamo",  # by DistributedDataParallel
    ]
)
