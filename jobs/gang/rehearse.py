"""A program, ``rehearse.py ADDRESS TIMEOUT_S``, that connects to a Ray as a driver would and exits.

It is a separate process because ``ray.init`` blocks for minutes if no Ray answers, and aborts the process on a host
that is no node of the cluster.
"""

import logging
import os
import socket
import sys


def main() -> None:
    """Exit with 0 if a driver on this host can use the Ray at the address."""
    address, timeout_s = sys.argv[1], float(sys.argv[2])
    if address != "auto":
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s).close()
    import ray  # slow, so only after the quick test

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    # Skip ray.shutdown(), which takes a second and has nothing to do.
    os._exit(0)


if __name__ == "__main__":
    main()
