"""The command `torch-remote`. Beside the package, not in it: importing torch_remote imports torch, which takes long."""
