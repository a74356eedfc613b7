"""`python -m torch_remote.worker`: the program torch-remote-worker, also where that is not on the path."""

import sys

import torch_remote_tools

if __name__ == "__main__":
    torch_remote_tools.run("torch-remote-worker", sys.argv[1:])
