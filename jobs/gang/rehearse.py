"""Run as a program, ``rehearse.py ADDRESS TIMEOUT_S``: connects to a Ray as a driver would, and leaves.

A process of its own, because ``ray.init`` on an address where no Ray answers doesn't return for minutes, and on a host
without a node of the cluster aborts the process.
"""

import logging
import os
import socket
import sys


def main() -> None:
    """Exit 0 where a driver on this host can use the Ray at the address."""
    address, timeout_s = sys.argv[1], float(sys.argv[2])
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    import ray  # only now: it takes a while

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    # ray.shutdown() has nothing to do here, and takes a second.
    os._exit(0)


if __name__ == "__main__":
    main()
