"""`python -m torch_remote.worker`: runs torch-remote-worker, even if that is not on the path."""

import sys

import torch_remote_tools

if __name__ == "__main__":
    torch_remote_tools.run("torch-remote-worker", sys.argv[1:])
