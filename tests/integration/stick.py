"""``python stick.py TID`` stops one thread of another process, until that process or this program ends.

The process then looks stuck from outside: its other threads go on, and answer. SIGSTOP can't do that, as it stops all
threads. ptrace can.
"""

import ctypes
import os
import sys

_SEIZE, _INTERRUPT = 0x4206, 0x4207
_ALL_THREADS = 0x40000000  # __WALL: waitpid() for a thread, not only for processes


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    tid = int(sys.argv[1])
    for request in (_SEIZE, _INTERRUPT):
        if libc.ptrace(request, tid, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")
    stopped = os.waitpid(tid, _ALL_THREADS)
    print(f"stopped {stopped}", flush=True)
    os.waitpid(tid, _ALL_THREADS)


if __name__ == "__main__":
    main()
