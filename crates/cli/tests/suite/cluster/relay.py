"""Runs a command with relayed input and output, as ssh does: relay.py PIDS COMMAND...

Appends its process id to the file PIDS. While it is stopped, the command is not reached.
"""

import os
import subprocess
import sys
import threading


def relay(source, target):
    try:
        while piece := os.read(source, 1 << 16):
            while piece:
                piece = piece[os.write(target, piece) :]
    except BrokenPipeError:
        pass
    os.close(target)


def main():
    with open(sys.argv[1], "a") as pids:
        print(os.getpid(), file=pids)
    pipe = subprocess.PIPE
    child = subprocess.Popen(sys.argv[2:], stdin=pipe, stdout=pipe)
    # Duplicates, since `Popen` closes its own.
    source, target = os.dup(child.stdout.fileno()), os.dup(child.stdin.fileno())
    child.stdin.close()
    threading.Thread(target=relay, args=(0, target), daemon=True).start()
    relay(source, 1)
    sys.stdout = None
    os._exit(child.wait() & 0xFF)


if __name__ == "__main__":
    main()
